// A transformer that encodes tokens without padding: all families, described by sizes and flags.
//
// Begin here, then read isa.h (how numbers lie in memory), run.cpp (`Encoder::run` at its end, and
// upwards from there), attention.h, product.h. The others can wait: engine.cpp and packing.cpp
// build an encoder, token_rows.h has functions of one row, units.h arithmetic by instruction set,
// tiles.h AMX, phases.h the work of several threads, and vocabulary.h the head of SPLADE.
//
// A new activation is a value of `Activation` (isa.h), a branch of `activate` (units.h) and its
// names in bindings/engine.cpp and mirror_rt/inference/native/checkpoint.py. Of positions there are
// four schemes: vectors that `embed` adds (run.cpp); and in attention.h `rotate`, which turns
// queries and keys; `relative`, biases that `exponentials` adds to the scores; and products with
// vectors of distances, `add_distances`. A new one is a field of `LayerWeights` or
// `EmbeddingWeights`, which the bindings fill and `attention` (run.cpp) hands to a `Head` (isa.h).
//
// A text has the same bits in every batch: it is never divided between groups, every sum follows
// the depth, keys or tokens of this text alone, in their order, and a number has the same
// operations whichever rows, threads and texts are beside it. Every kernel must keep this.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/isa.h"
#include "engine/phases.h"
#include "engine/workspace.h"

namespace mirror_rt::engine {

/// The sizes and the kind of an encoder.
struct Config {
  Precision precision;
  std::int64_t hidden;  // H
  std::int64_t heads;
  std::int64_t key_heads;  // of keys and values, each shared by as many heads of queries
  std::int64_t size;       // of a head
  std::int64_t inner;      // width of the feed-forward layer
  std::int64_t embedded;   // width of the embeddings, H unless they are projected
  std::int64_t vocabulary;
  std::int64_t positions;  // most tokens of a text
  std::int64_t types;      // of tokens
  std::int64_t buckets;    // of distances that have vectors, as in DeBERTa; 0 for none
  float scale;             // of the scores of attention
  float word_scale;        // of the vectors of words
  float epsilon;           // of all norms
  Activation activation;
  bool gated;  // the inner layer is activation(a) * b, of products [a, b] by 2 I columns
  // Whether norms stand before the halves of a layer: then `attention_norm` is that of its second
  // half, the feed-forward one, and `out_norm` that of the next layer's first half, or the last.
  bool pre_norm;
  bool raw;      // if so: the embeddings are normalised for the first layer's first half alone
  bool centred;  // whether norms take the mean off (LayerNorm) or not (RMSNorm)
  bool causal;   // whether tokens attend to no later ones
  std::int64_t skipped_id;  // a token that has no position of its own (RoBERTa); -1 for none

  std::int64_t queries() const { return heads * size; }
  std::int64_t keys() const { return key_heads * size; }
};

/// Refuses sizes that do not go together, or for which a size, an index or a sum of int8 products
/// would overflow; all that follows relies on it. Throws std::invalid_argument.
void check(const Config& config);

/// A weight [depth, columns], row-major, and its bias [columns]. The caller keeps them.
struct Weight {
  const float* values;
  const float* bias;
  std::int64_t depth;
  std::int64_t columns;
};

/// The weights of the embeddings. `words` [vocabulary, embedded] stays where it is, and must
/// outlive the encoder.
struct EmbeddingWeights {
  const float* words;
  const float* positions;  // [positions, embedded]; null for none
  const float* types;      // [types, embedded], added with the positions; null for none
  const float* skipped;    // [embedded], the position of `skipped_id`; null for none
  Norm norm;
  Weight projection;            // [embedded, hidden]; null values for none
  const float* relative;        // biases of scores [heads, 2 positions - 1]; null for none
  const std::int32_t* buckets;  // [2 positions - 1], those of keys before a query first; or null
};

struct LayerWeights {
  Weight query_key_value;  // [H, queries + 2 keys]
  Weight attention_out;    // [queries, H]
  Norm attention_norm;
  Weight inner;  // [H, I], or [H, 2 I] if it is gated
  Weight out;    // [I, H]
  Norm out_norm;
  std::int64_t window;      // how far a token attends; `positions` for everywhere
  const float* rotary;      // [positions, size] cosines and sines, kept by the caller; or null
  const float* query_norm;  // [size]; null for none
  const float* key_norm;
  Norm attention_after, out_after;  // of what a half adds, before it does; null weights for none
  const float* distances;  // [buckets, 2 queries], for products with keys and queries; or null
};

/// `inner` is the mean of the tokens between the first and the last, NaN where there is none.
enum class Pooling { mean, inner, first, last, maximum, none };

/// Texts as token ids one after the other; text i is ids[offsets[i]] .. ids[offsets[i + 1]].
struct Texts {
  const std::int32_t* ids;
  const std::int32_t* types;  // of the tokens, beside `ids`; null for 0 everywhere
  const std::int64_t* offsets;
  std::int64_t count;
  const std::int64_t* attended;  // of each text, how many first tokens can be keys; null for all

  std::int64_t start(std::int64_t text) const { return offsets[text] - offsets[0]; }
  std::int64_t length(std::int64_t text) const { return offsets[text + 1] - offsets[text]; }
  std::int64_t tokens() const { return start(count); }
};

/// A matrix whose packed weights are in an arena.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(const Isa& isa, Precision precision, const Weight& weight, Arena& arena);
  const Matrix& get() const { return matrix_; }

 private:
  Buffer<float> bias_, scales_, sums_;
  Matrix matrix_{};
};

class Encoder {
 public:
  /// `config` has passed `check`.
  Encoder(const Config& config, const Isa& isa, const EmbeddingWeights& embeddings);

  /// Packs one more layer; its matrices may be freed then.
  void add_layer(const LayerWeights& weights);
  /// Adds a layer that is an earlier one again, as in ALBERT.
  void repeat_layer(std::int64_t layer);

  /// Writes a vector [H] for each text, or for each token with Pooling::none. The ids are below
  /// `vocabulary`, types below `types`, and no text is empty or longer than `positions`. Every
  /// token has an attended one in its window. Safe to call concurrently.
  void run(const Texts& texts, Pooling pooling, int threads, int spins, float* out) const;

  const Config& config() const { return config_; }
  std::int64_t window() const;  // the least of all layers
  std::int64_t layers() const { return static_cast<std::int64_t>(layers_.size()); }

 private:
  struct PackedNorm {
    PackedNorm(const Norm& norm, std::int64_t n);
    Norm get() const { return {weight.get(), bias.get(), centred}; }
    Buffer<float> weight, bias;
    bool centred;
  };
  struct Layer {
    PackedMatrix query_key_value, attention_out, inner, out;
    PackedNorm attention_norm, out_norm, attention_after, out_after;
    std::int64_t window;
    const float* rotary;
    Buffer<float> query_norm, key_norm;
    OperandBuffer distances;  // in the precision in which queries are multiplied
  };
  struct Group;

  Group prepare(const Texts& texts, Pooling pooling, float* out, int threads,
                Workspace& space) const;
  void encode(Phases::Member& member, const Group& group) const;
  void embed(const Group& group, std::int64_t text) const;
  void run_layer(Phases::Member& member, const Group& group, const Layer& layer) const;
  void products(Phases::Member& member, const Group& group, const Operand& a,
                const PackedMatrix& weights, const Result& result) const;
  void attention(Phases::Member& member, const Group& group, const Layer& layer) const;
  void add_rows(Phases::Member& member, const Group& group, const Operand& a,
                const PackedMatrix& weights, const Rows& between, const PackedNorm& after,
                const PackedNorm& norm) const;
  void convert_rows(Phases::Member& member, const Group& group, const Rows& from, std::int64_t n,
                    const Operand& to, Activation gate = Activation::none) const;
  bool attends_in_pairs() const;
  void pool(const Group& group, std::int64_t text) const;
  std::unique_ptr<Workspace> workspace() const;
  void give_back(std::unique_ptr<Workspace> workspace) const;

  Config config_;
  const Isa& isa_;
  const float* words_;
  Arena weights_;
  Buffer<float> positions_, types_, skipped_, relative_;
  std::vector<std::int32_t> buckets_;
  PackedNorm embeddings_norm_;
  std::unique_ptr<PackedMatrix> projection_;
  std::vector<std::shared_ptr<const Layer>> layers_;
  mutable std::mutex keeping_;
  mutable std::vector<std::unique_ptr<Workspace>> kept_;
};

/// Scales rows of `n` numbers to unit length; a row of zeros stays as it is.
void normalize_rows(float* rows, std::int64_t count, std::int64_t n);

}  // namespace mirror_rt::engine
