// Builds an encoder: checks its sizes, copies what embeddings need, and packs its layers.
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace mirror_rt::engine {
namespace {

constexpr std::int64_t kMostPositions = 1 << 20;

void in_range(const char* name, std::int64_t size, std::int64_t most) {
  if (size >= 1 && size <= most) return;
  throw std::invalid_argument(std::string(name) + " is " + std::to_string(size) +
                              ", expected 1 .. " + std::to_string(most));
}

}  // namespace

void check(const Config& c) {
  in_range("the hidden size", c.hidden, kWidest);
  in_range("the inner size", c.inner, kWidest);
  in_range("the size of embeddings", c.embedded, kWidest);
  in_range("the number of heads", c.heads, kWidest);
  in_range("the size of a head", c.size, kWidest / c.heads);
  in_range("the number of heads of keys", c.key_heads, c.heads);
  in_range("the number of positions", c.positions, kMostPositions);
  in_range("the size of the vocabulary", c.vocabulary, std::numeric_limits<std::int32_t>::max());
  if (c.heads % c.key_heads != 0) {
    throw std::invalid_argument("the heads of keys do not divide those of queries");
  }
  if (c.buckets > 0 && c.key_heads != c.heads) {
    throw std::invalid_argument("distances need a head of keys for each head of queries");
  }
  if (c.raw && !c.pre_norm) throw std::invalid_argument("raw embeddings need norms before layers");
  if (!std::isfinite(c.scale) || !std::isfinite(c.word_scale) || !(c.epsilon >= 0) ||
      std::isinf(c.epsilon)) {
    throw std::invalid_argument("scales and epsilon must be finite, and epsilon not negative");
  }
}

Encoder::Encoder(const Config& config, const Isa& isa, const EmbeddingWeights& weights)
    : config_(config),
      isa_(isa),
      words_(weights.words),
      embeddings_norm_(weights.norm, config.embedded) {
  const std::int64_t n = config.embedded, stride = round_up(n, kPanel);
  positions_ = copy_rows(weights.positions, config.positions, n, stride);
  types_ = copy_rows(weights.types, config.types, n, stride);
  skipped_ = copy_rows(weights.skipped, 1, n, stride);
  if (weights.projection.values != nullptr) {
    projection_ =
        std::make_unique<PackedMatrix>(isa, config.precision, weights.projection, weights_);
  }
  const std::int64_t distances = 2 * config.positions - 1;
  relative_ = copy_rows(weights.relative, config.heads, distances, distances + kPanel);
  if (config.buckets > 0) buckets_.assign(weights.buckets, weights.buckets + distances);
}

Encoder::PackedNorm::PackedNorm(const Norm& norm, std::int64_t n)
    : weight(copy_rows(norm.weight, 1, n, round_up(n, kPanel))),
      bias(copy_rows(norm.bias, 1, n, round_up(n, kPanel))),
      centred(norm.centred) {}

bool Encoder::attends_in_pairs() const {
  const bool even = config_.size % 2 == 0;
  return even && config_.precision != Precision::float32 && isa_.pairs;
}

void Encoder::add_layer(const LayerWeights& w) {
  const auto pack = [&](const Weight& weight) {
    return PackedMatrix(isa_, config_.precision, weight, weights_);
  };
  const std::int64_t n = config_.hidden, size = config_.size, wide = 2 * config_.queries();
  const std::int64_t stride = round_up(wide, kPanel);
  const auto rows = copy_rows(w.distances, config_.buckets, wide, stride);
  const Precision kind = attends_in_pairs() ? Precision::bfloat16 : Precision::float32;
  OperandBuffer distances;
  const Operand to = distances.reserve(kind, config_.buckets, stride);
  for (std::int64_t row = 0; row < config_.buckets; ++row) {
    isa_.convert(kind, rows.get() + row * stride, wide, Activation::none, to, row);
  }
  layers_.push_back(std::make_shared<const Layer>(Layer{
      pack(w.query_key_value), pack(w.attention_out), pack(w.inner), pack(w.out),
      PackedNorm(w.attention_norm, n), PackedNorm(w.out_norm, n), PackedNorm(w.attention_after, n),
      PackedNorm(w.out_after, n), w.window, w.rotary, copy_rows(w.query_norm, 1, size, size),
      copy_rows(w.key_norm, 1, size, size), std::move(distances)}));
}

void Encoder::repeat_layer(std::int64_t layer) {
  layers_.push_back(layers_.at(static_cast<std::size_t>(layer)));
}

std::int64_t Encoder::window() const {
  std::int64_t least = config_.positions;
  for (const auto& layer : layers_) least = std::min(least, layer->window);
  return least;
}

void normalize_rows(float* rows, std::int64_t count, std::int64_t n) {
  for (float* x = rows; x < rows + count * n; x += n) {
    double squares = 0;
    for (std::int64_t k = 0; k < n; ++k) squares += double{x[k]} * x[k];
    const auto factor = static_cast<float>(1 / std::max(std::sqrt(squares), 1e-12));
    for (std::int64_t k = 0; k < n; ++k) x[k] *= factor;
  }
}

std::unique_ptr<Workspace> Encoder::workspace() const {
  // A lock that is not free at once may never be, in a process that was forked meanwhile.
  const std::unique_lock<std::mutex> lock(keeping_, std::try_to_lock);
  if (!lock || kept_.empty()) return std::make_unique<Workspace>();
  auto found = std::move(kept_.back());
  kept_.pop_back();
  return found;
}

void Encoder::give_back(std::unique_ptr<Workspace> workspace) const {
  if (workspace->hidden.size() > kKeptTokens * round_up(config_.hidden, kPanel)) return;
  const std::unique_lock<std::mutex> lock(keeping_, std::try_to_lock);
  if (lock && kept_.size() < kKeptWorkspaces) kept_.push_back(std::move(workspace));
}

}  // namespace mirror_rt::engine
