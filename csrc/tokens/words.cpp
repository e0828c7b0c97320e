#include "tokens/words.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>

namespace mirror_rt {

TextIds WordIds::find(const std::vector<std::string_view>& texts, std::size_t most_tokens) const {
  TextIds found;
  std::unordered_set<std::string_view> unknown;
  const std::shared_lock<std::shared_mutex> reading(lock_);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string_view text = texts[i];
    const std::size_t start = found.ids.size();
    bool known = true;
    for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
      end = std::min(text.find(' ', begin), text.size());
      if (end == begin) continue;
      const std::string_view word = text.substr(begin, end - begin);
      const auto place = spans_.find(word);
      if (place == spans_.end()) {
        known = false;
        if (word.size() <= kMostBytes && unknown.insert(word).second) found.unknown.push_back(word);
      } else if (known) {
        const auto ids = ids_.begin() + static_cast<std::ptrdiff_t>(place->second.begin);
        const auto count = static_cast<std::ptrdiff_t>(place->second.count);
        found.ids.insert(found.ids.end(), ids, ids + count);
      }
    }
    if (!known || found.ids.size() - start > most_tokens) {
      found.ids.resize(start);
      found.rest.push_back(static_cast<std::int64_t>(i));
    }
    found.offsets.push_back(static_cast<std::int64_t>(found.ids.size()));
  }
  return found;
}

void WordIds::add(std::string_view word, const std::vector<std::int32_t>& ids) {
  const std::unique_lock<std::shared_mutex> writing(lock_);
  if (word.size() > kMostBytes || spans_.count(word) != 0) return;
  if (spans_.size() >= most_) {
    spans_.clear();
    words_.clear();
    ids_.clear();
  }
  spans_.emplace(words_.emplace_back(word), Span{ids_.size(), ids.size()});
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

}  // namespace mirror_rt
