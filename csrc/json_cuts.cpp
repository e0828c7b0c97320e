#include "json_cuts.h"

#include <algorithm>

namespace mirror_rt {
namespace {

constexpr std::size_t kUnicodeEscape = 6;  // bytes of \uXXXX

// Returns whether the escape at `at` is the first half of a surrogate pair.
bool is_high_surrogate(std::string_view document, std::int64_t at) {
  const std::string_view digits = document.substr(std::size_t(at), 4);
  return digits.size() == 4 && document[at + 1] == 'u' && (digits[2] == 'd' || digits[2] == 'D') &&
         std::string_view("89aAbB").find(digits[3]) != std::string_view::npos;
}

std::int64_t escape_length(std::string_view document, std::int64_t at) {
  std::size_t length = 2;
  if (at + 1 < std::int64_t(document.size()) && document[at + 1] == 'u') length = kUnicodeEscape;
  if (is_high_surrogate(document, at)) length = 2 * kUnicodeEscape;  // never cut a pair
  const std::string_view escape = document.substr(std::size_t(at), length);
  // A too short escape is invalid; do not skip the quote that ends the text.
  return std::int64_t(std::min(escape.find('"', 2), escape.size()));
}

class Scanner {
 public:
  Scanner(std::string_view document, std::int64_t size) : document_(document), size_(size) {}

  LargeJsonValue find() {
    const std::int64_t n = std::int64_t(document_.size());
    while (at_ < n && !found_) {
      const char c = document_[at_];
      if (c == '"') {
        text();
        continue;
      }
      if (c == '[' || c == '{') {
        ++depth_;
        if (c == '[' && list_ == 0) {
          list_ = depth_;
          begin();
        }
      } else if (c == ']' || c == '}') {
        if (depth_ == list_) {
          list_ = 0;
          finish(at_ + 1);
        }
        depth_ = std::max<std::int64_t>(0, depth_ - 1);
      } else if (c == ',' && list_ != 0 && depth_ == list_) {
        maybe_cut(false);
      }
      ++at_;
    }
    if (!found_ && list_ != 0) finish(n);
    return found_ ? value_ : LargeJsonValue{};
  }

 private:
  void begin() {
    value_ = {at_, at_, {}};
    last_ = at_ + 1;
  }

  void maybe_cut(bool in_text) {
    if (at_ - last_ < size_) return;
    value_.cuts.push_back({at_, in_text});
    last_ = at_;
  }

  void finish(std::int64_t stop) {
    value_.stop = stop;
    found_ = stop - value_.start >= size_;
  }

  // Scans from an opening quote to just past the closing one.
  void text() {
    const std::int64_t n = std::int64_t(document_.size());
    const bool alone = list_ == 0;
    if (alone) begin();
    for (++at_; at_ < n;) {
      const auto c = static_cast<unsigned char>(document_[at_]);
      if (c == '"') break;
      if ((alone || depth_ == list_) && (c & 0xC0) != 0x80) maybe_cut(true);
      at_ += c == '\\' ? escape_length(document_, at_) : 1;
    }
    at_ = std::min(at_ + 1, n);
    if (alone) finish(at_);
  }

  std::string_view document_;
  std::int64_t size_;
  std::int64_t at_ = 0, depth_ = 0, last_ = 0;
  std::int64_t list_ = 0;  // depth of the outermost list; 0 outside of lists
  bool found_ = false;
  LargeJsonValue value_;
};

}  // namespace

LargeJsonValue find_large_json_value(std::string_view document, std::int64_t size) {
  return Scanner(document, size).find();
}

}  // namespace mirror_rt
