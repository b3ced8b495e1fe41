#include "gpu/support/party.h"

#include <cuda_runtime_api.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace ulysses::testing {

namespace {

constexpr int kMostRanks = 16;

void sendFd(int socket, int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(socket, &message, 0) != 1) throw std::runtime_error("sending a descriptor failed");
}

UniqueFd receiveFd(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == nullptr) {
    throw std::runtime_error("no descriptor came");
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return UniqueFd(fd);
}

}  // namespace

// In memory that all ranks share.
struct Party::Board {
  std::atomic<uint32_t> arrived, round;
  struct Seat {
    DeviceMemory::Offer offer;
    const std::shared_ptr<DeviceMemory>* object;
    double number;
    char text[512];
  } seats[kMostRanks];
  int sockets[kMostRanks][kMostRanks];  // [of rank][to rank]
};

void Party::barrier() {
  const uint32_t round = board_->round.load();
  if (board_->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(nranks_)) {
    board_->arrived.store(0);
    board_->round.store(round + 1);
    return;
  }
  for (int spins = 0; board_->round.load() == round; ++spins) {
    if (spins > 1000) sched_yield();
  }
}

std::vector<std::shared_ptr<DeviceMemory>> Party::share(const std::shared_ptr<DeviceMemory>& mine, int device) {
  board_->seats[rank_].offer = mine->offer();
  board_->seats[rank_].object = &mine;
  barrier();
  const auto elsewhere = [&](int peer) { return !(board_->seats[peer].offer.process == mine->offer().process); };
  for (int peer = 0; peer < nranks_; ++peer) {
    if (elsewhere(peer) && mine->fd() >= 0) sendFd(board_->sockets[rank_][peer], mine->fd());
  }
  std::vector<std::shared_ptr<DeviceMemory>> all;
  for (int peer = 0; peer < nranks_; ++peer) {
    const DeviceMemory::Offer& offer = board_->seats[peer].offer;
    UniqueFd fd;
    if (elsewhere(peer) && offer.kind == DeviceMemory::Kind::Vmm) fd = receiveFd(board_->sockets[rank_][peer]);
    auto opened = peer == rank_     ? Result<std::shared_ptr<DeviceMemory>>(mine)
                  : elsewhere(peer) ? DeviceMemory::open(offer, std::move(fd), device)
                                    : DeviceMemory::open(*board_->seats[peer].object, device);
    if (!opened.ok()) throw std::runtime_error(opened.status().message());
    all.push_back(opened.take());
  }
  barrier();
  return all;
}

double Party::largest(double mine) {
  board_->seats[rank_].number = mine;
  barrier();
  double most = mine;
  for (int peer = 0; peer < nranks_; ++peer) most = std::max(most, board_->seats[peer].number);
  barrier();
  return most;
}

std::string runRanks(RanksAs as, int nranks, const std::function<std::string(Party&)>& rank, int timeoutSeconds) {
  // Streams of one process that share a hardware queue would wait for each other's spinning kernels. Processes need
  // few, and under MPS there are not enough for many each.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", as == RanksAs::Threads ? "32" : "4", 1);
  void* memory = mmap(nullptr, sizeof(Party::Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return "no shared memory";
  auto* board = new (memory) Party::Board{};
  for (int i = 0; i < nranks; ++i) {
    for (int j = i + 1; j < nranks; ++j) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return "no sockets";
      board->sockets[i][j] = pair[0];
      board->sockets[j][i] = pair[1];
    }
  }
  const auto runOne = [&](int r) {
    Party party(board, r, nranks);
    std::string wrong;
    try {
      int devices = 0;
      if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        wrong = kNoDevice;
      else
        wrong = rank(party);
    } catch (const std::exception& e) {
      wrong = std::string("rank ") + std::to_string(r) + ": " + e.what();
    }
    std::strncpy(board->seats[r].text, wrong.c_str(), sizeof board->seats[r].text - 1);
  };
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int child = 0; child < (as == RanksAs::Threads ? 1 : nranks); ++child) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (as == RanksAs::Processes) {
        runOne(child);
      } else {
        std::vector<std::thread> threads;
        for (int r = 0; r < nranks; ++r) threads.emplace_back(runOne, r);
        for (auto& thread : threads) thread.join();
      }
      std::fflush(nullptr);
      _exit(0);
    }
    children.push_back(pid);
  }
  std::string wrong;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(timeoutSeconds);
  for (size_t i = 0; i < children.size();) {
    int state = 0;
    if (waitpid(children[i], &state, WNOHANG) == 0) {
      // One that failed leaves the others waiting for it.
      bool failed = std::chrono::steady_clock::now() > deadline;
      if (failed) wrong += "out of time; ";
      for (int r = 0; r < nranks; ++r) failed |= board->seats[r].text[0] != 0;
      if (failed) {
        usleep(200000);
        for (size_t j = i; j < children.size(); ++j) kill(children[j], SIGKILL);
        for (size_t j = i; j < children.size(); ++j) waitpid(children[j], &state, 0);
        break;
      }
      usleep(1000);
      continue;
    }
    if (!WIFEXITED(state)) wrong += "rank process " + std::to_string(i) + " was ended by a signal; ";
    ++i;
  }
  for (int r = nranks - 1; r >= 0; --r) {
    if (board->seats[r].text[0] != 0) wrong = board->seats[r].text;
    for (int peer = 0; peer < nranks; ++peer) {
      if (peer != r) close(board->sockets[r][peer]);
    }
  }
  munmap(memory, sizeof(Party::Board));
  return wrong;
}

}  // namespace ulysses::testing
