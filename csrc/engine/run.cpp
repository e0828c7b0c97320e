// Runs an encoder: groups of texts, each by one thread or by all of them.
#include <algorithm>
#include <atomic>
#include <limits>

#include "engine/engine.h"
#include "parallel.h"

namespace mirror_rt::engine {
namespace {

constexpr std::int64_t kBlockRows = 128;     // of a product that one thread computes at a time
constexpr std::int64_t kRowsOfTask = 4;      // of functions of rows
constexpr std::int64_t kSoloTokens = 128;    // of a group that one thread encodes
constexpr std::int64_t kSharedTokens = 512;  // of a group that all threads encode
// Calls of Member::run in `run_layer`, and besides it in `encode`, at most: change both together.
constexpr std::int64_t kPhasesOfLayer = 9, kOtherPhases = 4;

/// Calls f(row) for every row of a group, some rows a task.
template <class Member, class F>
void for_rows(Member& member, std::int64_t rows, const F& f) {
  member.run((rows + kRowsOfTask - 1) / kRowsOfTask, [&](std::int64_t task) {
    const std::int64_t end = std::min(rows, (task + 1) * kRowsOfTask);
    for (std::int64_t row = task * kRowsOfTask; row < end; ++row) f(row);
  });
}

/// Cuts texts into groups of about `target` tokens: the first text of each, and the end.
std::vector<std::int64_t> cut(const Texts& texts, std::int64_t target) {
  std::vector<std::int64_t> firsts{0};
  for (std::int64_t text = 1; text < texts.count; ++text) {
    const std::int64_t without = texts.start(text) - texts.start(firsts.back());
    const std::int64_t with = without + texts.length(text);
    if (with > target && with - target > target - without) firsts.push_back(text);
  }
  firsts.push_back(texts.count);
  return firsts;
}

std::int64_t longest(const Texts& texts) {
  std::int64_t most = 0;
  for (std::int64_t text = 0; text < texts.count; ++text) {
    most = std::max(most, texts.length(text));
  }
  return most;
}

}  // namespace

/// Consecutive texts that are encoded together.
struct Encoder::Group {
  Texts texts;  // the first offset is not 0
  Pooling pooling;
  float* out;  // of the first text
  std::int64_t tokens;
  Rows hidden, wide, context, normed;  // what is normalised is in `hidden` or `context`
  Rows scratch;                        // of attention, a row for each thread
  // Left operands of `query_key_value` and `inner`; of `out`; and of `attention_out`.
  Operand input, middle, attended;
};

Encoder::Group Encoder::prepare(const Texts& texts, Pooling pooling, float* out, int threads,
                                Workspace& space) const {
  const Config& c = config_;
  Group g{};
  g.texts = texts, g.pooling = pooling, g.out = out, g.tokens = texts.tokens();
  const auto rows = [&](Buffer<float>& buffer, std::int64_t count, std::int64_t size) {
    const std::int64_t stride = round_up(size, kPanel);
    return Rows{buffer.reserve(count * stride), stride};
  };
  g.hidden = rows(space.hidden, g.tokens, c.hidden);
  // Embeddings that are projected begin in `wide`, and in `middle`.
  g.wide = rows(space.wide, g.tokens,
                std::max({c.queries() + 2 * c.keys(), c.gated ? 2 * c.inner : c.inner, c.embedded,
                          c.hidden}));
  const std::int64_t most = longest(texts);
  std::int64_t floats = attention_scratch(most, c.size);
  if (c.buckets > 0) floats += distance_scratch(most, c.size, std::min(2 * most, c.buckets));
  g.scratch = rows(space.scratch, threads, floats);
  if (c.precision != Precision::bfloat16 || c.pre_norm) {
    g.context = rows(space.context, g.tokens, std::max(c.hidden, c.queries()));
  }
  g.normed = c.pre_norm ? g.context : g.hidden;
  if (c.precision == Precision::float32) {
    g.input = {g.normed.values, g.normed.stride};
    g.middle = {g.wide.values, g.wide.stride};
    g.attended = {g.context.values, g.context.stride};
  } else {
    const std::int64_t widest = std::max({c.inner, c.hidden, c.queries(), c.embedded});
    const std::int64_t stride = round_up(widest, kPanel);
    g.input = space.input.reserve(c.precision, g.tokens, g.hidden.stride);
    g.middle = space.middle.reserve(c.precision, g.tokens, stride);
    g.attended = g.middle;
    g.attended.stride = round_up(c.queries(), kPanel);
  }
  return g;
}

void Encoder::embed(const Group& g, std::int64_t text) const {
  const std::int64_t n = config_.embedded, stride = round_up(n, kPanel);
  const bool projected = projection_ != nullptr;
  std::int64_t place = 0;
  for (std::int64_t i = 0; i < g.texts.length(text); ++i) {
    const std::int64_t row = g.texts.start(text) + i, token = g.texts.offsets[text] + i;
    const std::int64_t id = g.texts.ids[token];
    float* x = (projected ? g.wide : g.hidden).at(row);
    for (std::int64_t k = 0; k < n; ++k) x[k] = words_[id * n + k] * config_.word_scale;
    std::fill(x + n, x + stride, 0.0f);
    if (positions_.get() != nullptr) {
      const bool skipped = id == config_.skipped_id;
      const float* position = skipped ? skipped_.get() : positions_.get() + place++ * stride;
      for (std::int64_t k = 0; k < n; ++k) x[k] += position[k];
    }
    if (types_.get() != nullptr) {
      const float* type = types_.get() + (g.texts.types ? g.texts.types[token] : 0) * stride;
      for (std::int64_t k = 0; k < n; ++k) x[k] += type[k];
    }
    isa_.normalize(config_.precision, x, config_.raw ? g.normed.at(row) : x, n,
                   embeddings_norm_.get(), config_.epsilon, projected ? g.middle : g.input, row);
  }
}

void Encoder::products(Phases::Member& member, const Group& g, const Operand& a,
                       const PackedMatrix& weights, const Result& result) const {
  const Matrix& w = weights.get();
  const std::int64_t blocks = (g.tokens + kBlockRows - 1) / kBlockRows;
  const std::int64_t rows = (g.tokens + blocks - 1) / blocks;
  member.run(blocks * w.panels, [&](std::int64_t task) {
    const std::int64_t begin = task / w.panels * rows, end = std::min(g.tokens, begin + rows);
    isa_.product(config_.precision, a, w, task % w.panels, begin, end, result);
  });
}

void Encoder::attention(Phases::Member& member, const Group& g, const Layer& layer) const {
  const Config& c = config_;
  const std::int64_t size = c.size, distances = 2 * c.positions - 1, group = c.heads / c.key_heads;
  const bool halves = c.precision == Precision::bfloat16, pairs = attends_in_pairs();
  const std::int64_t width = halves ? 2 : 4, step = pairs ? 2 : 4;  // bytes in `out`, and in `wide`
  const std::int64_t out_stride = halves ? g.attended.stride : g.context.stride;
  auto* wide = reinterpret_cast<char*>(g.wide.values);
  auto* out = static_cast<char*>(halves ? g.attended.values : g.context.values);
  // A task is one head of keys of a text, with the `group` heads of queries that share it.
  member.run(g.texts.count * c.key_heads, [&](std::int64_t task) {
    const std::int64_t text = task / c.key_heads, keys = task % c.key_heads;
    const std::int64_t start = g.texts.start(text);
    char* row = wide + start * g.wide.stride * step;
    Head head{};
    head.key = row + (c.queries() + keys * size) * step;
    head.value = row + (c.queries() + c.keys() + keys * size) * step, head.pairs = pairs;
    head.stride = g.wide.stride, head.tokens = g.texts.length(text), head.size = size;
    head.attended = g.texts.attended ? g.texts.attended[text] : head.tokens;
    head.scale = c.scale, head.back = layer.window, head.ahead = c.causal ? 0 : layer.window;
    head.query_norm = layer.query_norm.get(), head.key_norm = layer.key_norm.get();
    head.epsilon = c.epsilon, head.rotary = layer.rotary;
    head.out_stride = out_stride, head.halves = halves;
    for (std::int64_t number = keys * group; number < (keys + 1) * group; ++number) {
      head.query = row + number * size * step;
      head.relative = relative_.get();
      if (head.relative != nullptr) {
        head.relative += number * (distances + kPanel) + c.positions - 1;
      }
      if (c.buckets > 0) {
        const std::int8_t* vectors = layer.distances.values.get() + number * size * step;
        head.buckets = buckets_.data() + c.positions - 1;
        head.distances[0] = vectors + c.queries() * step, head.distances[1] = vectors;
        head.distance_stride = round_up(2 * c.queries(), kPanel);
      }
      head.out = out + (start * out_stride + number * size) * width;
      isa_.attend(head, g.scratch.at(member.thread()));
      head.laid_out = true;
    }
    // The last pair of an odd number has a zero as its second, which no head writes.
    for (std::int64_t i = 0; halves && keys == 0 && i < head.tokens; ++i) {
      auto* last = reinterpret_cast<std::uint16_t*>(out) + (start + i) * out_stride;
      std::fill(last + c.queries(), last + round_up(c.queries(), 2), std::uint16_t{0});
    }
  });
}

/// Adds a product to `hidden`, and writes what `norm` makes of the sum to `normed` (which is
/// `hidden` itself unless norms come first) and `input`. Where the layer has a norm `after`, the
/// product is normalised in `between` before it is added.
void Encoder::add_rows(Phases::Member& member, const Group& g, const Operand& a,
                       const PackedMatrix& weights, const Rows& between, const PackedNorm& after,
                       const PackedNorm& norm) const {
  const std::int64_t n = config_.hidden;
  const bool direct = after.weight.get() == nullptr;
  const Rows& to = direct ? g.hidden : between;
  products(member, g, a, weights, {to.values, to.stride, direct});
  for_rows(member, g.tokens, [&](std::int64_t row) {
    float* x = g.hidden.at(row);
    if (!direct) {
      float* part = between.at(row);
      isa_.normalize(Precision::float32, part, part, n, after.get(), config_.epsilon,
                     {between.values, between.stride}, row);
      for (std::int64_t k = 0; k < n; ++k) x[k] += part[k];
    }
    isa_.normalize(config_.precision, x, g.normed.at(row), n, norm.get(), config_.epsilon, g.input,
                   row);
  });
}

void Encoder::convert_rows(Phases::Member& member, const Group& g, const Rows& from, std::int64_t n,
                           const Operand& to, Activation gate) const {
  for_rows(member, g.tokens, [&](std::int64_t row) {
    isa_.convert(config_.precision, from.at(row), n, gate, to, row);
  });
}

void Encoder::run_layer(Phases::Member& member, const Group& g, const Layer& layer) const {
  const Config& c = config_;
  const bool converts = c.precision == Precision::int8;
  products(member, g, g.input, layer.query_key_value,
           {g.wide.values, g.wide.stride, false, attends_in_pairs()});
  attention(member, g, layer);
  if (converts) convert_rows(member, g, g.context, c.queries(), g.attended);
  add_rows(member, g, g.attended, layer.attention_out, g.wide, layer.attention_after,
           layer.attention_norm);
  if (c.gated) {
    products(member, g, g.input, layer.inner, {g.wide.values, g.wide.stride});
    convert_rows(member, g, g.wide, c.inner, g.middle, c.activation);
  } else {
    const bool halves = c.precision == Precision::bfloat16;
    const Operand to = halves ? g.middle : Operand{g.wide.values, g.wide.stride};
    products(member, g, g.input, layer.inner, {to.values, to.stride, false, halves, c.activation});
    if (converts) convert_rows(member, g, g.wide, c.inner, g.middle);
  }
  add_rows(member, g, g.middle, layer.out, g.context, layer.out_after, layer.out_norm);
}

void Encoder::pool(const Group& g, std::int64_t text) const {
  const std::int64_t n = config_.hidden, length = g.texts.length(text), start = g.texts.start(text);
  if (g.pooling == Pooling::none) {
    for (std::int64_t row = start; row < start + length; ++row) {
      std::copy_n(g.normed.at(row), n, g.out + row * n);
    }
    return;
  }
  float* out = g.out + text * n;
  if (g.pooling == Pooling::first || g.pooling == Pooling::last) {
    std::copy_n(g.normed.at(g.pooling == Pooling::first ? start : start + length - 1), n, out);
    return;
  }
  const bool inner = g.pooling == Pooling::inner, mean = inner || g.pooling == Pooling::mean;
  const std::int64_t begin = start + inner, end = start + length - inner;
  if (begin >= end) {
    std::fill_n(out, n, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  float* pooled = g.normed.at(begin);  // pooled into the first row
  for (std::int64_t row = begin + 1; row < end; ++row) {
    const float* x = g.normed.at(row);
    for (std::int64_t k = 0; k < n; ++k) {
      // A NaN is larger than all.
      pooled[k] = mean ? pooled[k] + x[k] : x[k] > pooled[k] || x[k] != x[k] ? x[k] : pooled[k];
    }
  }
  const auto count = static_cast<float>(mean ? end - begin : 1);
  for (std::int64_t k = 0; k < n; ++k) out[k] = pooled[k] / count;
}

void Encoder::encode(Phases::Member& member, const Group& g) const {
  member.run(g.texts.count, [&](std::int64_t text) { embed(g, text); });
  if (projection_ != nullptr) {
    products(member, g, g.middle, *projection_, {g.hidden.values, g.hidden.stride});
    if (config_.precision != Precision::float32) {
      convert_rows(member, g, g.hidden, config_.hidden, g.input);
    }
  }
  for (const auto& layer : layers_) run_layer(member, g, *layer);
  member.run(g.texts.count, [&](std::int64_t text) { pool(g, text); });
}

void Encoder::run(const Texts& texts, Pooling pooling, int threads, int spins, float* out) const {
  const std::int64_t tokens = texts.tokens();
  // All threads share each group if one text is more than 1.25 times a thread's part of the tokens.
  const bool shared = threads > 1 && 4 * longest(texts) * threads > 5 * tokens;
  const std::int64_t target =
      shared ? kSharedTokens : std::min(kSoloTokens, (tokens + threads - 1) / threads);
  const int together = shared ? threads : 1;  // threads of a group
  const auto firsts = cut(texts, target);
  const auto encode_group = [&](std::size_t i) {
    const std::int64_t first = firsts[i];
    const std::int64_t before = pooling == Pooling::none ? texts.start(first) : first;
    const auto* attended = texts.attended ? texts.attended + first : nullptr;
    const Texts part{texts.ids, texts.types, texts.offsets + first, firsts[i + 1] - first,
                     attended};
    auto space = workspace();
    const Group group = prepare(part, pooling, out + before * config_.hidden, together, *space);
    Phases phases(kPhasesOfLayer * layers() + kOtherPhases, spins);
    on_threads(together, [&](int thread) {
      Phases::Member member(phases, thread);
      encode(member, group);
      isa_.rest();
    });
    give_back(std::move(space));
  };
  std::atomic<bool> no_memory{false};
  const auto groups = static_cast<std::int64_t>(firsts.size()) - 1;
  parallel_for(groups, shared ? 1 : threads, [&](std::int64_t i, int) {
    try {
      encode_group(static_cast<std::size_t>(i));
    } catch (const std::bad_alloc&) {
      no_memory = true;
    }
  });
  if (no_memory) throw std::bad_alloc();
}

}  // namespace mirror_rt::engine
