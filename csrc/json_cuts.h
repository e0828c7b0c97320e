// Where a large JSON document can be cut, so that nobody has to read it at a stretch.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mirror_rt {

/// A place to cut at: a comma between two items of a list, or the first byte of a character of a
/// text.
struct JsonCut {
  std::int64_t position;
  bool in_text;
};

/// A list or a text, from its bracket or quote to behind the closing one; 0 and 0 for none. Where
/// the document ends within it, it ends with the document.
struct LargeJsonValue {
  std::int64_t start = 0;
  std::int64_t stop = 0;
  std::vector<JsonCut> cuts;
};

/// Finds the first list or text in no list that has at least `size` bytes, and cuts that are at
/// least so far apart: between items of the list, in its texts, or in the text. Whether the
/// document is valid is left to those who read the parts.
LargeJsonValue find_large_json_value(std::string_view document, std::int64_t size);

}  // namespace mirror_rt
