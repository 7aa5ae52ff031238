// Runs each kernel of the draft on small problems, in memory that ends where operands end: for compute-sanitizer.
#include <cstdio>
#include <vector>

#include "draft.h"

extern "C" {
int w8a8_few(const Problem*, int, int, int, int, int, int, int, int, int);
int w8a8_gemm(const Problem*, int, int, const Choice*);
int w8a8_quantise(int, int, const void*, int64_t, void*, int64_t, float*, int64_t, int64_t, int, int, int, void*);
}

template <class T>
T* on_device(const std::vector<T>& v) {
  T* p = nullptr;
  cudaMalloc(&p, v.size() * sizeof(T));
  cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice);
  return p;
}

int main(int count, char** args) {
  const bool few_only = count > 1 && args[1][0] == 'f', gemm_only = count > 1 && args[1][0] == 'g';
  uint32_t seed = 1;
  const auto random = [&] { return seed = seed * 1664525 + 1013904223, seed >> 8; };
  int launched = 0, refused = 0;
  const auto run = [&](int m, int n, int k, auto launch) {
    std::vector<uint8_t> x(size_t(m) * k), w(size_t(n) * k);
    for (auto& b : x) b = random() % 0x7f;
    for (auto& b : w) b = random() % 0x7f;
    const int kb = (k + 127) / 128, nb = (n + 127) / 128;
    for (int blocks = 0; blocks < 2; blocks++) {
      std::vector<float> fx(blocks ? size_t(m) * kb : m, 0.5f), fw(blocks ? size_t(nb) * kb : n, 0.25f);
      Problem p{};
      uint8_t *const dx = on_device(x), *const dw = on_device(w);
      float *const dfx = on_device(fx), *const dfw = on_device(fw);
      void *d, *workspace;
      cudaMalloc(&d, size_t(m) * n * 4), cudaMalloc(&workspace, size_t(m) * n * 4 * 3);
      p.x = dx, p.w = dw, p.d = d, p.m = m, p.n = n, p.k = k, p.x_stride = k, p.w_stride = k, p.d_stride = n;
      p.factors = blocks ? tilegemm::Factors{dfx, kb, 1, dfw, kb, 1} : tilegemm::Factors{dfx, 1, 0, dfw, 1, 0};
      p.alpha = 1, p.prefetch = 2, p.workspace = workspace;
      launch(p, blocks);
      cudaDeviceSynchronize();
      for (void* q : {(void*)dx, (void*)dw, (void*)dfx, (void*)dfw, d, workspace}) cudaFree(q);
    }
  };
  const auto counted = [&](int status) { (status ? refused : launched)++; };
  const int shapes[][3] = {{1, 64, 16}, {3, 72, 400}, {8, 200, 1040}, {60, 130, 2064}};
  if (!gemm_only) {
    for (const auto& s : shapes) {
      run(s[0], s[1], s[2], [&](const Problem& p, int blocks) {
        for (int groups : {1, 2})
          for (int width : {8, 64})
            for (int split : {1, 2, 4}) {
              if (width < p.m || width > 8 * p.m) continue;
              const int boxes = width == 64 ? 1 : 2, w_box = groups == 2 ? 112 : split == 2 ? 56 : 64;
              for (int sums : {0, 1, 2})
                if ((sums == 2) == blocks)
                  counted(w8a8_few(&p, 0, TG_BF16, groups, width, boxes, sums, w_box, split, 4));
              if (!blocks) counted(w8a8_few(&p, 1, TG_BF16, groups, width, boxes, 0, w_box, split, 4));
            }
      });
    }
  }
  const int larger[][3] = {{70, 136, 272}, {300, 600, 784}};
  if (!few_only) {
    for (const auto& s : larger) {
      run(s[0], s[1], s[2], [&](const Problem& p, int blocks) {
        for (int width : {64, 112, 128, 224, 256})
          for (int pair : {0, 1, 2}) {
            for (int sums : {0, 1, 2}) {
              const Choice c{width, width == 64 ? 48 : width, sums, pair, 2048};
              if ((sums == 2) != blocks) continue;
              counted(w8a8_gemm(&p, 0, TG_BF16, &c));
              if (width == 256) counted(w8a8_gemm(&p, 0, TG_F32, &c));
              if (sums == 0 && width >= 128 && width != 224) counted(w8a8_gemm(&p, 1, TG_BF16, &c));
            }
          }
      });
    }
  }
  if (!few_only && !gemm_only) {
    for (int columns : {77, 640, 4096}) {
      std::vector<uint16_t> x(size_t(5) * columns);
      for (auto& b : x) b = uint16_t(0x3f00 + random() % 256);
      uint16_t* const dx = on_device(x);
      uint8_t* codes;
      float* f;
      cudaMalloc(&codes, 5 * columns), cudaMalloc(&f, 8 * ((columns + 127) / 128) * 4);
      const float one = 1;
      cudaMemcpy(f, &one, 4, cudaMemcpyHostToDevice);
      for (int kind : {0, 1, 2})
        counted(w8a8_quantise(kind, TG_BF16, dx, columns, codes, columns, f, 1, 8, 5, columns, 0, nullptr));
      cudaDeviceSynchronize();
      cudaFree(dx), cudaFree(codes), cudaFree(f);
    }
  }
  std::printf("launched %d refused %d: %s\n", launched, refused, cudaGetErrorString(cudaDeviceSynchronize()));
}
