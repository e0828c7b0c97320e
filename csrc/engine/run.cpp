// Runs an encoder: groups of texts, each by one thread or by all of them.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "engine/engine.h"
#include "engine/workspace.h"
#include "parallel.h"

namespace mirror_rt::engine {
namespace {

constexpr std::int64_t kBlockRows = 128;     // of a product that one thread computes at a time
constexpr std::int64_t kRowsOfTask = 4;      // of functions of rows
constexpr std::int64_t kSoloTokens = 128;    // of a group that one thread encodes
constexpr std::int64_t kSharedTokens = 512;  // of a group that all threads encode
constexpr std::int64_t kPhasesOfLayer = 9, kOtherPhases = 5;

}  // namespace

/// Consecutive texts that are encoded together.
struct Encoder::Group {
  Texts texts;  // the first offset is not 0
  Pooling pooling;
  float* out;  // of the first text
  Workspace* workspace;
  std::int64_t tokens, scratch;
  float *hidden, *wide, *context, *normed;  // what is normalised is in `hidden` or `context`
  Operand input, middle, attended;
  std::int64_t hidden_stride, wide_stride;

  std::int64_t start(std::int64_t text) const { return texts.offsets[text] - texts.offsets[0]; }
  std::int64_t length(std::int64_t text) const {
    return texts.offsets[text + 1] - texts.offsets[text];
  }
};

namespace {

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
    const std::int64_t start = texts.offsets[firsts.back()];
    const std::int64_t without = texts.offsets[text] - start;
    const std::int64_t with = texts.offsets[text + 1] - start;
    if (with > target && with - target > target - without) firsts.push_back(text);
  }
  firsts.push_back(texts.count);
  return firsts;
}

std::int64_t longest(const Texts& texts) {
  std::int64_t most = 0;
  for (std::int64_t text = 0; text < texts.count; ++text) {
    most = std::max(most, texts.offsets[text + 1] - texts.offsets[text]);
  }
  return most;
}

}  // namespace

Encoder::Group Encoder::prepare(const Texts& texts, Pooling pooling, float* out, int threads,
                                Workspace& space) const {
  const Config& c = config_;
  Group g{};
  g.texts = texts, g.pooling = pooling, g.out = out, g.workspace = &space;
  g.tokens = texts.offsets[texts.count] - texts.offsets[0];
  g.hidden_stride = round_up(c.hidden, kPanel);
  g.wide_stride = round_up(std::max(3 * c.hidden, c.gated ? 2 * c.inner : c.inner), kPanel);
  const std::int64_t inner_stride = round_up(c.inner, kPanel);
  g.hidden = space.hidden.reserve(g.tokens * g.hidden_stride);
  g.wide = space.wide.reserve(g.tokens * g.wide_stride);
  g.scratch = round_up(attention_scratch(longest(texts), c.hidden / c.heads), 16);
  space.scratch.reserve(g.scratch * threads);
  if (c.precision != Precision::bfloat16 || c.pre_norm) {
    g.context = space.context.reserve(g.tokens * g.hidden_stride);
  }
  g.normed = c.pre_norm ? g.context : g.hidden;
  if (c.precision == Precision::float32) {
    g.input = {g.normed, g.hidden_stride};
    g.middle = {g.wide, g.wide_stride};
    g.attended = {g.context, g.hidden_stride};
  } else {
    g.input = space.input.reserve(c.precision, g.tokens, g.hidden_stride);
    g.middle = space.middle.reserve(c.precision, g.tokens, std::max(inner_stride, g.hidden_stride));
    g.attended = g.middle;
    g.attended.stride = g.hidden_stride;
  }
  space.tokens = std::max(space.tokens, g.tokens);
  return g;
}

void Encoder::embed(const Group& g, std::int64_t text) const {
  const std::int64_t n = config_.embedded, stride = round_up(n, kPanel);
  const bool projected = projection_ != nullptr;
  std::int64_t place = 0;
  for (std::int64_t i = 0; i < g.length(text); ++i) {
    const std::int64_t row = g.start(text) + i, id = g.texts.ids[g.texts.offsets[0] + row];
    float* x = projected ? g.wide + row * g.wide_stride : g.hidden + row * g.hidden_stride;
    std::copy_n(words_ + id * n, n, x);
    std::fill(x + n, x + stride, 0.0f);
    if (positions_.get() != nullptr) {
      const bool skipped = id == config_.skipped_id;
      const float* position = skipped ? skipped_.get() : positions_.get() + place++ * stride;
      for (std::int64_t k = 0; k < n; ++k) x[k] += position[k];
    }
    isa_.normalize(config_.precision, x, x, n, norm(embeddings_norm_),
                   projected ? g.middle : g.input, row);
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
  const std::int64_t size = c.hidden / c.heads, distances = 2 * c.positions - 1;
  const bool halves = c.precision == Precision::bfloat16, pairs = attends_in_pairs();
  const std::int64_t width = halves ? 2 : 4;
  auto* out = halves ? static_cast<char*>(g.attended.values) : reinterpret_cast<char*>(g.context);
  member.run(g.texts.count * c.heads, [&](std::int64_t task) {
    const std::int64_t text = task / c.heads, number = task % c.heads, start = g.start(text);
    const std::int64_t step = pairs ? 2 : 4;
    char* query = reinterpret_cast<char*>(g.wide) + (start * g.wide_stride + number * size) * step;
    const float* relative = relative_.get();
    if (relative != nullptr) relative += number * (distances + kPanel) + c.positions - 1;
    Head head{};
    head.query = query, head.key = query + c.hidden * step;
    head.value = query + 2 * c.hidden * step, head.pairs = pairs;
    head.stride = g.wide_stride, head.tokens = g.length(text), head.size = size;
    head.scale = c.scale, head.window = layer.window;
    head.relative = relative, head.rotary = layer.rotary;
    head.out = out + (start * g.hidden_stride + number * size) * width;
    head.out_stride = g.hidden_stride, head.halves = halves;
    isa_.attend(head, g.workspace->scratch.get() + member.thread() * g.scratch);
  });
}

void Encoder::normalize_rows(Phases::Member& member, const Group& g, const PackedNorm& of) const {
  for_rows(member, g.tokens, [&](std::int64_t row) {
    const std::int64_t at = row * g.hidden_stride;
    isa_.normalize(config_.precision, g.hidden + at, g.normed + at, config_.hidden, norm(of),
                   g.input, row);
  });
}

void Encoder::convert_rows(Phases::Member& member, const Group& g, float* from, std::int64_t stride,
                           std::int64_t n, const Operand& to, Activation gate) const {
  for_rows(member, g.tokens, [&](std::int64_t row) {
    isa_.convert(config_.precision, from + row * stride, n, gate, to, row);
  });
}

void Encoder::run_layer(Phases::Member& member, const Group& g, const Layer& layer) const {
  const Precision precision = config_.precision;
  const bool converts = precision == Precision::int8, gated = config_.gated;
  products(member, g, g.input, layer.query_key_value,
           {g.wide, g.wide_stride, false, attends_in_pairs()});
  attention(member, g, layer);
  if (converts) {
    convert_rows(member, g, g.context, g.hidden_stride, config_.hidden, g.attended);
  }
  products(member, g, g.attended, layer.attention_out, {g.hidden, g.hidden_stride, true});
  normalize_rows(member, g, layer.attention_norm);
  const bool halves = precision == Precision::bfloat16 && !gated;
  const Activation gate = gated ? config_.activation : Activation::none;
  const Result inner{halves ? g.middle.values : g.wide, halves ? g.middle.stride : g.wide_stride,
                     false, halves, gated ? Activation::none : config_.activation};
  products(member, g, g.input, layer.inner, inner);
  if (converts || gated) {
    convert_rows(member, g, g.wide, g.wide_stride, config_.inner, g.middle, gate);
  }
  products(member, g, g.middle, layer.out, {g.hidden, g.hidden_stride, true});
  normalize_rows(member, g, layer.out_norm);
}

void Encoder::pool(const Group& g, std::int64_t text) const {
  const std::int64_t n = config_.hidden, length = g.length(text);
  const float* rows = g.normed + g.start(text) * g.hidden_stride;
  if (g.pooling == Pooling::none) {
    for (std::int64_t i = 0; i < length; ++i) {
      std::copy_n(rows + i * g.hidden_stride, n, g.out + (g.start(text) + i) * n);
    }
    return;
  }
  float* out = g.out + text * n;
  std::copy_n(rows, n, out);
  if (g.pooling == Pooling::first) return;
  for (std::int64_t i = 1; i < length; ++i) {
    for (std::int64_t k = 0; k < n; ++k) out[k] += rows[i * g.hidden_stride + k];
  }
  for (std::int64_t k = 0; k < n; ++k) out[k] /= static_cast<float>(length);
}

void Encoder::encode(Phases::Member& member, const Group& g) const {
  member.run(g.texts.count, [&](std::int64_t text) { embed(g, text); });
  if (projection_ != nullptr) {
    products(member, g, g.middle, *projection_, {g.hidden, g.hidden_stride});
    if (config_.precision != Precision::float32) {
      convert_rows(member, g, g.hidden, g.hidden_stride, config_.hidden, g.input);
    }
  }
  for (const Layer* layer : layers_) run_layer(member, g, *layer);
  member.run(g.texts.count, [&](std::int64_t text) { pool(g, text); });
}

void Encoder::run(const Texts& texts, Pooling pooling, int threads, int spins, float* out) const {
  const std::int64_t tokens = texts.offsets[texts.count] - texts.offsets[0];
  // A text that takes longer than the others together is shared by all threads.
  const bool shared = threads > 1 && 4 * longest(texts) * threads > 5 * tokens;
  const std::int64_t target =
      shared ? kSharedTokens : std::min(kSoloTokens, (tokens + threads - 1) / threads);
  const auto firsts = cut(texts, target);
  const auto count = static_cast<std::int64_t>(firsts.size()) - 1;
  const auto group = [&](std::int64_t i, Workspace& space, int threads_of) {
    const std::int64_t first = firsts[static_cast<std::size_t>(i)];
    const std::int64_t end = firsts[static_cast<std::size_t>(i) + 1];
    const std::int64_t before =
        pooling == Pooling::none ? texts.offsets[first] - texts.offsets[0] : first;
    const Texts part{texts.ids, texts.offsets + first, end - first};
    return prepare(part, pooling, out + before * config_.hidden, threads_of, space);
  };
  if (!shared) {
    std::atomic<bool> no_memory{false};
    parallel_for(count, threads, [&](std::int64_t i, int) {
      try {
        auto space = workspace();
        Phases::Member alone(nullptr, 0);
        encode(alone, group(i, *space, 1));
        give_back(std::move(space));
      } catch (const std::bad_alloc&) {
        no_memory = true;
      }
    });
    if (no_memory) throw std::bad_alloc();
    return;
  }
  auto space = workspace();
  for (std::int64_t i = 0; i < count; ++i) {
    Phases phases(kPhasesOfLayer * layers() + kOtherPhases, spins);
    struct Context {
      const Encoder* encoder;
      const Group group;
      Phases& phases;
    } context{this, group(i, *space, threads), phases};
    on_threads(
        threads,
        [](void* argument, int thread) {
          auto& c = *static_cast<Context*>(argument);
          Phases::Member member(&c.phases, thread);
          c.encoder->encode(member, c.group);
        },
        &context);
  }
  give_back(std::move(space));
}

}  // namespace mirror_rt::engine
