// Persistent parameters, measured: a model's forwards under each residency, or one gather against what else there is.
#include <CLI/CLI.hpp>

#include "common/program.h"
#include "param/forward.h"
#include "param/gather.h"

using namespace ulysses;
using namespace ulysses::perf;

int main(int argc, char** argv) {
  CLI::App app("Persistent parameters: gathers at the given sizes or, with --model, the forwards of a model.",
               "param_gather_perf");
  CommonOptions common;
  ForwardOptions forward;
  std::string modelName, scale = "1", residency = "all";
  bool baseline = false;
  int rounds = 30;
  common.addTo(app);
  common.addTableTo(app);
  common.addMemoryTo(app);
  app.add_option("--model", modelName, "a model of the table (wan14b): its forwards are run");
  app.add_option("--scale", scale, "divides every count of the model: 1/N")->capture_default_str();
  app.add_option("--residency", residency, "persistent, budget:BYTES, budget:N%, transient, or all")
      ->capture_default_str();
  app.add_option("--forwards", forward.forwards, "passes over all groups")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--compute-us", forward.computeUs, "compute stand-in of a block, in microseconds (on a GPU a kernel of one CTA)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--prefetch-depth", forward.prefetchDepth, "blocks fetched ahead")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_flag(
      "--baseline", baseline,
      "then compare in turns with a plain copy, with MPI (host memory, under mpirun), with NCCL (device memory)");
  app.add_option("--rounds", rounds, "rounds of --baseline")->check(CLI::PositiveNumber)->capture_default_str();
  // A model's forwards have their own sizes and their own table.
  CommonOptions::excludeTable(app, "--model", {"-b", "-e", "-i", "-f", "-d", "--baseline", "--rounds", "--lib"});

  Model model;
  std::vector<ResidencyChoice> choices;
  const auto validate = [&]() -> Status {
    ULYSSES_TRY(common.validate());
    ULYSSES_TRY(common.chooseMemory());
    if (modelName.empty()) return {};
    ULYSSES_ASSIGN(model, findModel(modelName, scale));
    ULYSSES_ASSIGN(choices, parseResidencies(residency, model));
    return {};
  };
  if (const auto code = parseArguments(app, argc, argv, validate)) return *code;
  const Subject subject{
      modelName.empty() ? std::string("parameter gathers") : "model " + modelName + ", scale " + scale,
      [&](int) -> SizeRange {
        if (!modelName.empty()) return {model.groupBytes(), model.groupBytes()};
        return {common.firstBytes(), common.lastBytes()};
      }};
  return runProgram("param_gather_perf", argc, argv, common, subject, [&](Run& run) {
    return modelName.empty() ? runGathers(run, baseline, rounds) : runForwards(run, model, choices, forward);
  });
}
