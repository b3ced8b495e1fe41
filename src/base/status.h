// Status and Result: how every internal function reports failure. Nothing inside the library throws on purpose.
#pragma once

#include <ulysses/ulysses.h>

#include <optional>
#include <string>
#include <utility>

namespace ulysses {

// A result code with the sentence that explains it. Success carries no text and allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ulyssesResult_t code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == ulyssesSuccess; }
  ulyssesResult_t code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  ulyssesResult_t code_ = ulyssesSuccess;
  std::string message_;
};

// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}           // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit on purpose

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T take() { return std::move(*value_); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace ulysses

// Returns the failed Status of `expression` from the calling function; goes on when it is ok.
#define ULYSSES_TRY(expression)                                              \
  do {                                                                       \
    if (::ulysses::Status status_ = (expression); !status_.ok()) return status_; \
  } while (0)

// Declares `target` from a Result, or returns its Status.
#define ULYSSES_CONCAT_(a, b) a##b
#define ULYSSES_CONCAT(a, b) ULYSSES_CONCAT_(a, b)
#define ULYSSES_ASSIGN(target, expression)                                          \
  auto ULYSSES_CONCAT(result_, __LINE__) = (expression);                            \
  if (!ULYSSES_CONCAT(result_, __LINE__).ok()) return ULYSSES_CONCAT(result_, __LINE__).status(); \
  target = ULYSSES_CONCAT(result_, __LINE__).take()
