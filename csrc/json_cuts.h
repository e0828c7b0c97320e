// Finds where a large JSON document can be cut, so that it can be parsed in parts.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mirror_rt {

/// A place to cut at: a comma between two items of a list, or the first byte of a character in a
/// text (a JSON string).
struct JsonCut {
  std::int64_t position;
  bool in_text;
};

/// A list or a text, from its opening bracket or quote to just past the closing one, or to the end
/// of the document if that comes first; 0 and 0 if there is none.
struct LargeJsonValue {
  std::int64_t start = 0;
  std::int64_t stop = 0;
  std::vector<JsonCut> cuts;
};

/// Finds the first list or text that is in no list and has at least `size` bytes, and cuts at least
/// `size` bytes apart: between items of the list, in its texts, or in the text. Whether the
/// document is valid is left to the parser of the parts.
LargeJsonValue find_large_json_value(std::string_view document, std::int64_t size);

}  // namespace mirror_rt
