// The epilogue of the sm_90 kernels, written as a CUTLASS 3 visitor:
//
//     d = activation(alpha * acc + bias) + beta * c
//
// This is one node instead of a tree of CUTLASS's nodes: the arguments of a launch say whether the bias runs along M,
// runs along N, or is absent. Without a bias, nothing is staged and no thread waits. All branches are uniform over the
// grid.
#pragma once
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"

#include "common/epilogue.hpp"

namespace tilegemm {

// `Element`: C, the bias and D. `AddsC`: CUTLASS loads C by TMA, through shared memory, a few parts of a tile ahead.
// Otherwise there is no C.
template <class Element, int TileM, int TileN, bool AddsC>
struct BiasActivation {
  struct Arguments {
    float alpha = 1;
    tg_activation activation = TG_IDENTITY;
    const Element* bias = nullptr;  // null: no bias
    int64_t bias_stride = 0, bias_batch_stride = 0;
    bool bias_along_m = false;  // one element per row; otherwise one element per column
    float beta = 0;
  };
  struct Params : Arguments {
    bool is_identity;  // a separate flag: as a case of the switch, the test would become a jump by table
  };

  // The slice of the bias for the tile.
  struct SharedStorage {
    Element bias[TileM > TileN ? TileM : TileN];
  };

  // The members that CUTLASS requires of every visitor.
  template <class Problem>
  static Params to_underlying_arguments(const Problem&, const Arguments& args, void*) {
    return {args, args.activation == TG_IDENTITY};
  }
  template <class Problem>
  static bool can_implement(const Problem&, const Arguments&) {
    return true;
  }
  template <class Problem>
  static size_t get_workspace_size(const Problem&, const Arguments&) {
    return 0;
  }
  CUTLASS_DEVICE bool is_producer_load_needed() const { return AddsC; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return AddsC; }
  template <class Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(const Args&) const {
    return cutlass::epilogue::fusion::EmptyProducerLoadCallbacks{};
  }

  CUTLASS_HOST_DEVICE BiasActivation(const Params& params, SharedStorage& shared)
      : params(params), staged(shared.bias) {}

  // The epilogue of one thread for one tile. `Rows` and `Columns`: the staged slice, partitioned like the thread's
  // accumulators, broadcast along N and along M. `Part`: the loaded part of C.
  template <int Threads, class Rows, class Columns, class Part>
  struct StoreCallbacks : cutlass::epilogue::fusion::EmptyConsumerStoreCallbacks {
    const Params& params;
    const Element* slice;  // the slice of the bias in global memory
    int length, thread;
    Element* staged;
    Rows rows;         // (CPY,CPY_M,CPY_N,EPI_M,EPI_N)
    Columns columns;   // (CPY,CPY_M,CPY_N,EPI_M,EPI_N)
    const Part& part;  // (CPY,CPY_M,CPY_N)

    // The barriers of the TMA stores stand between the reads of the previous tile and these writes.
    CUTLASS_DEVICE void begin() {
      if (!params.bias) return;
      cutlass::arch::wait_on_dependent_grids();  // only the threads that read the bias wait
      for (int i = thread; i < length; i += Threads) staged[i] = slice[i * params.bias_stride];
    }
    CUTLASS_DEVICE bool begin_sync_needed() const { return params.bias; }

    template <int N>
    CUTLASS_DEVICE auto visit(const cutlass::Array<float, N>& acc, int epi_v, int epi_m, int epi_n) {
      cutlass::Array<float, N> x;
      const auto add = [&](const auto& bias) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < N; i++) {
          x[i] = fmaf(params.alpha, acc[i], float(bias(cute::_, cute::_, cute::_, epi_m, epi_n)(epi_v * N + i)));
        }
      };
      if (!params.bias) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < N; i++) x[i] = params.alpha * acc[i];
      } else if (params.bias_along_m) {
        add(rows);
      } else {
        add(columns);
      }

      if (!params.is_identity) {
        constexpr Accuracy accuracy = accuracy_of<Element>;
        switch (params.activation) {  // once per fragment, not once per element
          case TG_RELU: activate_each<TG_RELU, accuracy>(x.storage); break;
          case TG_GELU_ERF: activate_each<TG_GELU_ERF, accuracy>(x.storage); break;
          case TG_GELU_TANH: activate_each<TG_GELU_TANH, accuracy>(x.storage); break;
          case TG_SILU: activate_each<TG_SILU, accuracy>(x.storage); break;
          default: break;
        }
      }
      if constexpr (AddsC) {
        const auto c = cute::recast<cutlass::Array<Element, N>>(part)(epi_v);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < N; i++) x[i] = fmaf(params.beta, float(c[i]), x[i]);
      }
      return cutlass::NumericArrayConverter<Element, float, N>{}(x);
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      const cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Args...>& args) const {
    using namespace cute;
    const auto thread_view = [&](auto stride) {
      Tensor sBias = make_tensor(make_smem_ptr(staged), Shape<Int<TileM>, Int<TileN>>{}, stride);  // (CTA_M,CTA_N)
      return cutlass::epilogue::fusion::sm90_partition_for_epilogue<ReferenceSrc>(sBias, args.epi_tile, args.tiled_copy,
                                                                                  args.thread_idx);
    };
    auto rows = thread_view(Stride<_1, _0>{});
    auto columns = thread_view(Stride<_0, _1>{});

    auto [M, N, K, L] = args.problem_shape_mnkl;
    auto [m, n, k, l] = args.tile_coord_mnkl;
    const int first = params.bias_along_m ? m * TileM : n * TileN;
    const int left = (params.bias_along_m ? M : N) - first, tile = params.bias_along_m ? TileM : TileN;
    const Element* slice = params.bias + first * params.bias_stride + l * params.bias_batch_stride;
    using Part = std::remove_reference_t<decltype(args.tCrC)>;
    return StoreCallbacks<CUTE_STATIC_V(size(args.tiled_copy)), decltype(rows), decltype(columns), Part>{
        {}, params, slice, left < tile ? left : tile, args.thread_idx, staged, rows, columns, args.tCrC};
  }

 private:
  const Params& params;
  Element* staged;
};

}  // namespace tilegemm
