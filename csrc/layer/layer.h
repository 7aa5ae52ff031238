/* Kernels of a model's layers that are no products.
 *
 * All functions launch on a stream, allocate nothing, are legal in a capture, and give the same bits for the same
 * input. Status: TG_OK; TG_UNSUPPORTED, where nothing was launched; TG_CUDA_ERROR. Numbers are f16 or bf16 (norms,
 * embeddings and logits also f32), arithmetic is f32, and each output is rounded once. `overlap`: programmatic
 * dependent launch (common/ptx.hpp). Every kernel here waits for all that was launched before it, and then or later
 * lets the next one start: blocks of a product that start while another product runs would be placed unevenly.
 *
 * Rows of padding: a row whose `slots` entry is negative reads and writes no cache. */
#pragma once
#include "tilegemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_launch {
  void* stream;
  int32_t overlap;
  int32_t multiprocessors; /* of the current device; 0 asks the driver */
} tg_launch;

/* Loads the kernels below on the current device, as first launches do. Invalidates no capture, on any stream and
 * thread. */
tg_status tg_load_layers(void);

/* K and V of all sequences. A row is `head` numbers; strides are in elements. 16-bit rows, and rows of fp8, start at
 * multiples of 16 bytes. With TG_F8E4M3 a number is the stored one times the scale of its head and row. */
typedef struct tg_cache {
  void* k;
  void* v;
  float* k_scale; /* null unless fp8: [slot][kv_head][row] by scale_slot_stride and scale_head_stride */
  float* v_scale;
  int64_t slot_stride, head_stride, row_stride;
  int64_t scale_slot_stride, scale_head_stride;
  int32_t slots, kv_heads, capacity, head;
  tg_format format; /* TG_F16, TG_BF16 or TG_F8E4M3 */
} tg_cache;

/* ---- Attention of one query row a sequence: decode.cu -------------------------------------------------------------*/

/* out[s][h] = softmax(scale * q[s][h] . K^T) V over the last min(length, window) of the sequence's rows.
 * With sinks, e^sinks[h] joins the sum of the weights of head h, and adds nothing to V: a sink of -inf is none, one of
 * inf leaves zeros, and one of NaN gives NaN.
 * A length of 0 gives zeros; lengths above the capacity count as the capacity. What lies behind the length is not
 * read. K of a sequence is cut into parts by that sequence's length alone, so the bits of a row depend on nothing
 * else. TG_UNSUPPORTED: head other than 64, 96, 128, 256; heads no multiple of kv_heads, or more than 16 times as
 * many; formats other than (f16 or bf16) with a cache of the same format or fp8; rows not at multiples of 16 bytes;
 * scale not positive; a workspace that is too small. */
typedef struct tg_attention_decode {
  const void* q; /* [sequences][heads][head], q_stride elements from sequence to sequence */
  void* out;     /* likewise */
  int64_t q_stride, out_stride;
  tg_cache cache;
  const int32_t* lengths;           /* [sequences], rows of the cache that are valid, with the new one */
  const int32_t* slots;             /* [sequences]; null: sequence s has slot s */
  const float* sinks;               /* [heads]; null: none */
  void* workspace;                  /* zeroed once before the first use; each launch leaves its counters zeroed */
  int64_t workspace_bytes;          /* a multiple of 16, and the same in all launches with this workspace */
  int32_t sequences, heads, window; /* window 0: all rows */
  float scale;
  tg_format format; /* of q and out */
  /* Whether the kernel before, on the same stream, is tg_append_launch, of the same sequences: then, with `overlap`,
   * this kernel reads lengths and all rows but each sequence's last before it waits. */
  int32_t after_append;
} tg_attention_decode;
int64_t tg_attention_decode_workspace(int32_t sequences, int32_t heads, int32_t head);
tg_status tg_attention_decode_launch(const tg_attention_decode* args, const tg_launch* launch);

/* ---- qk-norm, rope, and the way of K and V into the cache: append.cu ----------------------------------------------*/

typedef enum tg_rope {
  TG_ROPE_NONE = 0,
  TG_ROPE_HALVES = 1,     /* pairs (i, i + head / 2): GPT-NeoX, HF llama, qwen */
  TG_ROPE_INTERLEAVED = 2 /* pairs (2 i, 2 i + 1): GPT-J, GGUF's llama */
} tg_rope;

/* Each row of the merged product [tokens][(heads + 2 kv_heads) * head] is q, k and v of one token. q and k are
 * normalised (with weights only) and turned, q goes to `q_out`, which may be the row itself, k and v go to the cache at
 * `positions`. An angle is position * inv_freq, exact to 2^-26 of a turn at all positions. Rows of padding (slot < 0
 * or no slot of the cache) and positions outside of the cache append nothing; q is written all the same.
 * fp8: the scale is the row's largest magnitude / 448; a row that holds inf or NaN has the scale NaN.
 * TG_UNSUPPORTED: head other than 64, 96, 128, 256; rows not at multiples of 16 bytes; formats as in attention;
 * a rope with neither inv_freq nor tables. */
typedef struct tg_append {
  const void* qkv;
  int64_t qkv_stride; /* elements from token to token */
  void* q_out;        /* [tokens][heads][head], q_stride; null: q stays in qkv */
  int64_t q_stride;
  tg_cache cache;
  const int32_t* positions;    /* [tokens] */
  const int32_t* slots;        /* [tokens]; null: token t has slot t */
  const float* inv_freq;       /* [head / 2] */
  const float *cos, *sin;      /* [table_rows][head / 2], or null: then by inv_freq */
  const void *q_norm, *k_norm; /* [head] of `format`, or null */
  int32_t tokens, heads, table_rows;
  tg_rope rope;
  float eps;
  tg_format format; /* of qkv and q_out */
} tg_append;
tg_status tg_append_launch(const tg_append* args, const tg_launch* launch);

/* The first rows of a slot of a cache in fp8 as numbers of `format`, f16 or bf16: [kv_heads][rows][head].
 * TG_UNSUPPORTED: heads as above, results not at multiples of 16 bytes; a slot or rows that the cache lacks. */
typedef struct tg_widen {
  tg_cache cache;
  void *k, *v;
  int32_t slot, rows;
  tg_format format;
} tg_widen;
tg_status tg_widen_launch(const tg_widen* args, const tg_launch* launch);

/* ---- Attention of many query rows of one sequence: prefill_*.cu ---------------------------------------------------*/

/* O[i][h] = softmax(scale * Q[i][h] @ K[h / ratio]^T) @ V[h / ratio], where ratio = heads / kv_heads.
 *
 * Query i has position past + i. The cache holds past + tokens positions; the new ones are written already. Query i
 * sees keys 0 to past + i (`causal`), or all of them; with a window w > 0, only keys above past + i - w. Scores,
 * softmax and sums are f32, weights are rounded to the format before they multiply V. A query that sees no key gives
 * zeros. Sinks are as in tg_attention_decode.
 *
 * NaN and infinities: as in softmax over a row. NaN in Q stays in its row and head; a score of -inf has weight 0, one
 * of inf gives NaN. NaN or inf in V at a position of the cache may reach rows that do not see it, since 0 * NaN is NaN.
 * Nothing behind past + tokens, and nothing behind the last row of Q, reaches a result.
 *
 * Strides count elements. Each address and stride is a multiple of 16 bytes; head elements are contiguous. */
typedef struct tg_prefill_args {
  tg_format format; /* of Q, K, V and O: TG_F16 or TG_BF16 */
  int32_t causal;
  int64_t tokens, heads, kv_heads, head; /* head: 64, 96, 128 or 256 */
  int64_t past;                          /* positions before the first query */
  int64_t window;                        /* 0: none */
  float scale;                           /* positive and finite */
  const void* q;                         /* tokens x heads x head */
  int64_t q_row_stride, q_head_stride;
  const void* k; /* kv_heads x positions x head */
  int64_t k_head_stride, k_row_stride;
  const void* v;
  int64_t v_head_stride, v_row_stride;
  void* o; /* tokens x heads x head */
  int64_t o_row_stride, o_head_stride;
  const float* sinks; /* [heads]; null: none */
  uint32_t* counter; /* on the device, 0, and 0 again afterwards: blocks take tiles as they become free. Null: tiles are
                        dealt out beforehand. One launch at a time. */
  void* workspace;   /* null: the keys of a tile are not parted over blocks; a multiple of 16 */
  int64_t workspace_bytes;
  int32_t sm_count;
  int32_t overlap; /* 1: may start while the kernel before still runs (programmatic dependent launch) */
  void* stream;
} tg_prefill_args;
/* By wgmma on compute capability 9.0, by mma.sync on others, where this build has them. */
tg_status tg_prefill_launch(const tg_prefill_args* args);
/* Bytes of workspace with which few tokens after many positions fill the device; 0: none. Its content is of no account.
 */
int64_t tg_prefill_workspace(const tg_prefill_args* args);

/* ---- norm.cu ------------------------------------------------------------------------------------------------------*/

/* y = x / sqrt(mean(x^2) + eps) * weight, rows of `columns` numbers. With a residual, sum = x + residual comes first,
 * rounded to x's format and stored, and y is the norm of sum: so the result has the bits of an addition and a norm
 * apart. sum may be x or the residual; y may be x without a residual, or the residual. Columns from 1 to 16384; f16,
 * bf16, f32, all operands alike, but for y in f32 without a residual. TG_UNSUPPORTED: others. */
typedef struct tg_rms_norm {
  const void* x;        /* [rows][columns], x_stride */
  const void* residual; /* null, or [rows][columns], residual_stride */
  const void* weight;   /* [columns] */
  void* sum;            /* null without a residual */
  void* y;
  int64_t x_stride, residual_stride, sum_stride, y_stride;
  int32_t rows, columns;
  float eps;
  tg_format format, y_format;
} tg_rms_norm;
tg_status tg_rms_norm_launch(const tg_rms_norm* args, const tg_launch* launch);

/* ---- embed_gate.cu ------------------------------------------------------------------------------------------------*/

/* out[t] = table[tokens[t]]. A token outside of the vocabulary gives a row of zeros and sets *error to 1 + t of one
 * such row; null: no flag. f16, bf16 or f32, in rows at multiples of 16 bytes. A table in blocks of a GGUF file, at any
 * address, has whole blocks in a row: a number is computed in f32 and rounded. */
typedef struct tg_embedding {
  const uint32_t* tokens;
  const void* table; /* [vocabulary][columns], contiguous */
  void* out;         /* [count][columns], contiguous */
  int32_t* error;
  int32_t count, vocabulary, columns;
  tg_format format, table_format; /* of out, and of the table: the same, or TG_Q4_0 to TG_Q6K */
} tg_embedding;
tg_status tg_embedding_launch(const tg_embedding* args, const tg_launch* launch);

/* out = f(gate) * up, from [rows][2 * columns]; halves: gates come first; interleaved: gate, up, gate, up. */
typedef enum tg_gate_function { TG_SWIGLU = 0, TG_GEGLU_TANH = 1, TG_GEGLU_ERF = 2, TG_RELU2 = 3 } tg_gate_function;
typedef struct tg_gated {
  const void* in;
  void* out;
  int64_t in_stride, out_stride;
  int32_t rows, columns, interleaved;
  tg_gate_function function;
  tg_format format; /* TG_F16 or TG_BF16; columns and strides are multiples of 8 */
} tg_gated;
tg_status tg_gated_launch(const tg_gated* args, const tg_launch* launch);

/* ---- quantise.cu --------------------------------------------------------------------------------------------------*/

/* What shares a factor: all numbers, a row, or 128 numbers of a row. */
typedef enum tg_factors { TG_FACTOR_OF_TENSOR = 0, TG_FACTORS_OF_ROWS = 1, TG_FACTORS_OF_BLOCKS = 2 } tg_factors;

/* codes = x / factor, rounded to nearest even. A factor is the largest magnitude / 448, in int8 / 127, and 1 where all
 * numbers are zeros; the factor of a tensor is given, and codes saturate. e4m3: NaN stays NaN and has no part in the
 * magnitude. A row (block) with an infinity is NaN, and its factor, too; with a given factor, an infinity becomes NaN.
 * int8: the factor of a row with a NaN or an infinity is NaN. TG_UNSUPPORTED: numbers other than f16, bf16, f32; codes
 * other than e4m3, and int8 by rows; more than 2^30 columns. */
typedef struct tg_quantise {
  const void* x;  /* [rows][columns], x_stride */
  void* codes;    /* [rows][columns], codes_stride */
  float* factors; /* of row i and block j at i * row_step + j * block_step; of a tensor one, which is read */
  int64_t x_stride, codes_stride, row_step, block_step;
  int32_t rows, columns;
  tg_factors kind;
  tg_format format, code_format; /* of x; of codes: TG_F8E4M3 or TG_I8 */
  int32_t
      gated; /* rows of x are gates and as many numbers: the codes are those of function(gate) * number in x's format */
  tg_gate_function function;
} tg_quantise;
tg_status tg_quantise_launch(const tg_quantise* args, const tg_launch* launch);

/* ---- sample.cu ----------------------------------------------------------------------------------------------------*/

/* How a sequence's next token is drawn, in device memory, so that a captured step serves all settings. */
typedef struct tg_sampling {
  float temperature;        /* <= 0: greedy, and top_k, top_p and min_p have no effect */
  float top_p;              /* the smallest set of tokens with at least this share of what top_k leaves; >= 1: off */
  float min_p;              /* at least this share of the most probable token; <= 0: off */
  float repetition_penalty; /* logits of tokens seen: / penalty if positive, * penalty if negative; 1: off */
  int32_t top_k;            /* <= 0: off */
  int32_t last_n;           /* how far the penalty looks back; <= 0: the whole history */
  uint32_t sequence;        /* of the random numbers' key */
  uint32_t reserved;
  uint64_t seed;
} tg_sampling;

/* Chooses tokens[s] by the logits of row s, then positions[s] += 1 and lengths[s] += 1, and, with a history,
 * history[s][the new position] = the token. Order: penalty, temperature, top_k, top_p, min_p. Tokens as probable as
 * the last one that stays, stay. Random numbers: Philox4x32-10, key `seed`, counter (token / 4, position, sequence, 0);
 * the token with the largest p / e wins, e exponential: so a draw depends on the row's logits, seed, sequence and
 * position only. Greedy: the first of the largest logits. NaN counts as -inf; a row without a number above -inf gives
 * token 0 and sets *error to 1 + s. Rows with a negative slot change nothing. */
typedef struct tg_sample {
  const void* logits; /* [sequences][vocabulary], logits_stride */
  int64_t logits_stride;
  const tg_sampling* settings;  /* [sequences]; null: all greedy, by many blocks a sequence */
  const int32_t* slots;         /* [sequences]; null: no padding. `history` goes by row, not by slot */
  uint32_t* tokens;             /* [sequences] */
  int32_t *positions, *lengths; /* [sequences]; positions: of the token that made the logits; lengths may be null */
  uint32_t* history;            /* [sequences][history_stride] tokens by position, or null */
  int64_t history_stride;
  int32_t* error;  /* or null */
  void* workspace; /* zeroed once; tg_sample_workspace bytes, of the same sequences and vocabulary in all launches */
  int64_t workspace_bytes;
  int32_t sequences, vocabulary;
  tg_format format; /* TG_F32, TG_BF16, TG_F16 */
} tg_sample;
int64_t tg_sample_workspace(int32_t sequences, int32_t vocabulary);
tg_status tg_sample_launch(const tg_sample* args, const tg_launch* launch);

#ifdef __cplusplus
}
#endif
