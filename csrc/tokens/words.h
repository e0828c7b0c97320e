// Remembers the token ids of words, so that texts of known words need no tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mirror_rt {

/// The ids of texts one after the other, as in `Ragged`. A text in `rest` has none.
struct TextIds {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int64_t> rest;
  std::vector<std::string_view> unknown;  ///< words of the texts in `rest`, each once
};

/// The ids of at most `most` words of at most `kMostBytes` bytes. Words are what stands between
/// spaces (U+0020). Safe to use from several threads.
class WordIds {
 public:
  static constexpr std::size_t kMostBytes = 64;

  explicit WordIds(std::size_t most) : most_(most) {}

  /// Joins the ids of the words of each text. A text with an unknown word, or with more than
  /// `most_tokens` ids, is among the rest.
  TextIds find(const std::vector<std::string_view>& texts, std::size_t most_tokens) const;

  /// Adds a word that is not there; before one too many, all others are forgotten.
  void add(std::string_view word, const std::vector<std::int32_t>& ids);

 private:
  struct Span {
    std::size_t begin, count;
  };

  std::size_t most_;
  mutable std::shared_mutex lock_;
  std::deque<std::string> words_;  // which the keys below point into
  std::vector<std::int32_t> ids_;
  std::unordered_map<std::string_view, Span> spans_;
};

}  // namespace mirror_rt
