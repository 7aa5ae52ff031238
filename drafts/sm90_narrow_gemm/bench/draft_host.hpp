#pragma once
#include <string>
#include <vector>
#include "sm90_narrow_gemm/cut.hpp"
struct Entry {
  const char* name;
  tilegemm::narrow::Code code;
  bool half;
  int width, height, blocks;
  bool late, folded;
  int unit;
  tilegemm::narrow::Factor factor;
  tg_status (*run16)(const tg_gemm_args&, const tilegemm::narrow::Weights&, const tilegemm::Cut&);
  tg_status (*run32)(const tg_gemm_args&, const tilegemm::narrow::Weights&, const tilegemm::Cut&);
  int stages[2];
};
std::vector<Entry>& entries();
struct Add {
  Add(const Entry& e) { entries().push_back(e); }
};
