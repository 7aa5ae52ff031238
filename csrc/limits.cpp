// The check of a problem against a kernel's contract, before the kernel's launch function.
#include "common/kernel.hpp"

namespace {

using namespace tilegemm;

// Bits of an element; 0 for blocks with factors inside.
int bits_of(tg_format format) {
  switch (format) {
    case TG_F64: return 64;
    case TG_F32: return 32;
    case TG_F16:
    case TG_BF16: return 16;
    case TG_F8E4M3:
    case TG_F8E8M0:
    case TG_I8:
    case TG_U8: return 8;
    case TG_U4:
    case TG_F4E2M1: return 4;
    default: return 0;
  }
}

// Whether `x` is a multiple of a power of two.
bool is_multiple(int64_t x, int64_t of) { return (x & (of - 1)) == 0; }

struct Check {
  const Contract& contract;
  const Limits& limits;
  const tg_gemm_args& args;
  Check(const Contract& contract, const tg_gemm_args& args) : contract(contract), limits(contract.limits), args(args) {}

  bool operator()() const {
    return groups() && gate() && scales() && epilogue() && counts() && blocks() && lines() && alignment() &&
           multiples() && args.sm_count >= limits.blocks;
  }

 private:
  bool is_gated() const { return args.gate == TG_GATE_HALVES || args.gate == TG_GATE_INTERLEAVED; }

  bool groups() const {
    const tg_groups& groups = args.groups;
    if (groups.count == 0) return limits.groups != Grouping::always;
    return limits.groups != Grouping::never && groups.count > 0 && groups.count <= INT_MAX / 2 &&
           !groups.first_row != !groups.group_of_row && groups.pairs_per_row >= 1 && groups.pairs_per_row <= INT_MAX &&
           args.batch[0] == 1 && args.batch[1] == 1 && args.beta == 0;
  }

  bool gate() const {
    if (args.gate == TG_UNGATED) return true;
    if (args.gate == TG_GATE_C) return limits.gates_c && args.beta != 0;
    return limits.gates && is_gated() && args.n % 2 == 0 && args.beta == 0;
  }

  bool scales() const {
    const auto fits = [&](unsigned operand, const tg_scale& scale, tg_format format) {
      if (!scale.ptr) return !scale.zeros;
      return (limits.scales & operand) && is_factor(scale.format) && scale.rows > 0 && scale.columns > 0 &&
             (!scale.zeros || format == TG_U4 || format == TG_U8);
    };
    const tg_types& types = contract.types;
    return fits(of_a, args.a_scale, types.a) && fits(of_b, args.b_scale, types.b) && fits(of_d, args.d_scale, types.d);
  }

  static bool is_factor(tg_format format) {
    return format == TG_F32 || format == TG_F16 || format == TG_BF16 || format == TG_F8E8M0 || format == TG_F8E4M3;
  }

  bool epilogue() const {
    const bool activates = args.activation != TG_IDENTITY && !is_gated();
    if (limits.fusion == Fusion::none && (args.bias.ptr || activates)) return false;
    return limits.fusion == Fusion::full || args.beta == 0;
  }

  bool counts() const {
    const int64_t matrices = args.batch[0] * args.batch[1];
    const int64_t along_m = ceil_div(args.m, limits.tile_rows), along_n = ceil_div(args.n, limits.tile_columns);
    return args.m <= limits.rows && args.n <= limits.columns && args.k >= limits.least_k && args.k <= limits.most_k &&
           matrices <= limits.matrices && (limits.two_batch_dims || args.batch[0] == 1) &&
           along_m <= limits.tiles / along_n &&
           (!limits.tiles_of_batch || along_m * along_n <= limits.tiles / matrices);
  }

  // Whether columns of packed codes are whole blocks of 32. Launch functions check blocks of GGUF.
  bool blocks() const {
    const tg_matrix& b = args.b;
    return bits_of(contract.types.b) != 4 || (b.row_stride == 1 && is_multiple(b.col_stride, 32) &&
                                              is_multiple(b.batch_stride[0], 32) && is_multiple(b.batch_stride[1], 32));
  }

  // Whether C and D have contiguous rows, and A and B lines of the kernel's layout that do not overlap.
  bool lines() const {
    if (contract.layout == TG_ANY) return true;
    const auto apart = [&](int64_t unit, int64_t line, int64_t length, int64_t count) {
      return unit == 1 && (limits.any_strides || line >= length || count == 1);
    };
    const auto in_rows = [&](const tg_matrix& x) { return limits.any_strides || x.col_stride == 1 || args.n == 1; };
    const tg_matrix &a = args.a, &b = args.b;
    return (a_is_k_major(contract.layout) ? apart(a.col_stride, a.row_stride, args.k, args.m)
                                          : apart(a.row_stride, a.col_stride, args.m, args.k)) &&
           (b_is_k_major(contract.layout) ? apart(b.row_stride, b.col_stride, args.k, args.n)
                                          : apart(b.col_stride, b.row_stride, args.n, args.k)) &&
           in_rows(args.d) && (args.beta == 0 || in_rows(args.c));
  }

  // Whether each line of a matrix starts at a multiple of the alignment, and TMA's strides are in range. The stride of
  // a dimension of size 1 has no effect. Blocks have whole lines at multiples wherever the first one has.
  bool starts(tg_format format, unsigned operand, const tg_matrix& x, int64_t rows, int64_t columns, int64_t outer,
              int64_t inner) const {
    const bool by_tma = limits.tma & operand, aligned = limits.aligned & operand;
    const int64_t bits = bits_of(format), need = by_tma && contract.align < 16 ? 16 : contract.align;
    const int64_t unit = bits > 0 && need * 8 > bits ? need * 8 / bits : 1;
    const int64_t far = (int64_t(1) << 43) / (bits > 0 ? bits : 8);
    const auto takes = [&](int64_t stride, int64_t extent) {
      return extent == 1 || ((!aligned || is_multiple(stride, unit)) && (!by_tma || (stride >= 0 && stride < far)));
    };
    return (!aligned || is_multiple(reinterpret_cast<intptr_t>(x.ptr), need)) &&
           (x.col_stride == 1 || takes(x.col_stride, columns)) &&
           ((x.row_stride == 1 && x.col_stride != 1) || takes(x.row_stride, rows)) && takes(x.batch_stride[0], outer) &&
           takes(x.batch_stride[1], inner);
  }

  bool alignment() const {
    const int64_t (&batch)[2] = args.batch;
    const tg_types& types = contract.types;
    const bool grouped = args.groups.count > 0;
    const int64_t rows_of_a = grouped ? ceil_div(args.m, args.groups.pairs_per_row) : args.m;
    const int64_t columns = is_gated() ? args.n / 2 : args.n;
    return starts(types.a, of_a, args.a, rows_of_a, args.k, batch[0], batch[1]) &&
           starts(types.b, of_b, args.b, args.k, args.n, batch[0], grouped ? args.groups.count : batch[1]) &&
           (args.beta == 0 || starts(types.c, of_c, args.c, args.m, args.n, batch[0], batch[1])) &&
           starts(types.d, of_d, args.d, args.m, columns, batch[0], batch[1]);
  }

  bool multiples() const {
    const auto whole = [&](unsigned extent, int64_t length, tg_format format) {
      return !(limits.multiples & extent) || is_multiple(length * bits_of(format), int64_t(contract.align) * 8);
    };
    const tg_types& types = contract.types;
    return whole(extent_n, is_gated() ? args.n / 2 : args.n, types.d) && whole(extent_k, args.k, types.a) &&
           whole(line_of_a, a_is_k_major(contract.layout) ? args.k : args.m, types.a) &&
           whole(line_of_b, b_is_k_major(contract.layout) ? args.k : args.n, types.b);
  }
};

bool are_same(const tg_types& x, const tg_types& y) {
  return x.a == y.a && x.b == y.b && x.c == y.c && x.d == y.d && x.acc == y.acc;
}

}  // namespace

tg_status tilegemm::launch_within(const Contract& contract, tg_status (*launch)(const tg_gemm_args*),
                                  const tg_gemm_args* args) {
  if (!are_same(args->types, contract.types)) return TG_UNSUPPORTED;
  if (args->m == 0 || args->n == 0 || args->batch[0] == 0 || args->batch[1] == 0) return TG_OK;
  return Check(contract, *args)() ? launch(args) : TG_UNSUPPORTED;
}

tg_status tilegemm::rehearse(const Contract& contract, tg_status (*launch)(const tg_gemm_args*),
                             const tg_gemm_args* args) {
  const Rehearsal rehearsal;
  return launch_within(contract, launch, args);
}
