// Prefill attention on Hopper.
#include "layer/prefill_sm90.hpp"

#include "layer/prefill_checks.hpp"
#include "layer/prefill_parts.hpp"

namespace tilegemm {
namespace {

// How blocks come by their tiles. `each`: a block for every tile.
enum class Order { dealt, taken, each };

template <class C>
tg_status launch(const tg_prefill_args& args, Order order) {
  using T = typename C::Element;
  Work w;
  if (args.heads / args.kv_heads % C::cluster != 0 || !work_of(args, C::rows, &w, C::cluster)) return TG_UNSUPPORTED;

  Maps maps;
  const auto type = tensor_map_type<T>;
  constexpr auto swizzle = C::row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  constexpr cuuint64_t head = C::head;
  const auto cache = [&](CUtensorMap* map, const void* ptr, int64_t row, int64_t of_head) {
    return tensor_map<3>(map, type, const_cast<void*>(ptr), {head, cuuint64_t(w.length), cuuint64_t(args.kv_heads)},
                         {cuuint64_t(row * 2), cuuint64_t(of_head * 2)}, {C::columns, C::keys / C::cluster, 1},
                         swizzle);
  };
  if (!tensor_map<3>(&maps.q, type, const_cast<void*>(args.q), {head, cuuint64_t(args.heads), cuuint64_t(args.tokens)},
                     {cuuint64_t(args.q_head_stride * 2), cuuint64_t(args.q_row_stride * 2)}, {C::columns, 1, 64},
                     swizzle) ||
      !cache(&maps.k, args.k, args.k_row_stride, args.k_head_stride) ||
      !cache(&maps.v, args.v, args.v_row_stride, args.v_head_stride)) {
    return TG_UNSUPPORTED;
  }
  const int parts = parts_of(args, w, C::rows, C::keys, C::cluster);
  if (parts > 1 && args.workspace && args.workspace_bytes >= bytes_of_parts(args, parts)) {
    w.parts = parts, w.total *= parts;
    w.values = static_cast<float*>(args.workspace);
    w.rows = reinterpret_cast<float2*>(w.values + parts * args.tokens * args.heads * args.head);
  }
  const int clusters = order == Order::each ? w.total : std::min(w.total, std::max(1, args.sm_count / C::cluster));
  w.taken = order == Order::taken && w.total > clusters, w.counter = args.counter;
  const tg_status status =
      launch_blocks<C>(args, clusters * C::cluster, C::cluster, args.overlap != 0, layer_prefill_sm90<C>, maps, w);
  return status == TG_OK && w.parts > 1 ? combine_parts<T>(args, w) : status;
}

// The configuration for each head size. `use` gets it as a value.
template <class T, class Use>
auto with_config(const tg_prefill_args& args, const Use& use) {
  switch (args.head) {
    case 64: return use(Config<T, 64, 3, 128, 2, true, Rescale::skip>{});
    case 96: return use(Config<T, 96, 2, 128, 2, true, Rescale::skip>{});
    case 128: return use(Config<T, 128, 2, 128, 2, true, Rescale::skip>{});
    default: return use(Config<T, 256, 2, 80, 2, false, Rescale::skip>{});
  }
}

template <class T>
tg_status launch_sm90(const tg_prefill_args& args) {
  return with_config<T>(args,
                        [&](auto c) { return launch<decltype(c)>(args, args.counter ? Order::taken : Order::dealt); });
}

}  // namespace
}  // namespace tilegemm

extern "C" int64_t tg_prefill_sm90_workspace(const tg_prefill_args* args) {
  using namespace tilegemm;
  if (args->tokens == 0 || !prefill_fits(*args)) return 0;
  return with_config<__half>(*args, [&](auto c) {
    using C = decltype(c);
    Work w;
    if (!work_of(*args, C::rows, &w)) return int64_t(0);
    return bytes_of_parts(*args, parts_of(*args, w, C::rows, C::keys, C::cluster));
  });
}

extern "C" tg_status tg_prefill_sm90(const tg_prefill_args* args) {
  using namespace tilegemm;
  if (args->tokens == 0) return TG_OK;
  if (!prefill_fits(*args)) return TG_UNSUPPORTED;
  return args->format == TG_F16 ? launch_sm90<__half>(*args) : launch_sm90<__nv_bfloat16>(*args);
}

extern "C" tg_status tg_load_layer_prefill_sm90() { return tilegemm::load_own_module(); }
