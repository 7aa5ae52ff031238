// The program of a family's layouts. cli/build.rs compiles csrc/<family>/layout.cu with the flags and the rows of the
// family's kernels, runs the program on the host and embeds the page that the program prints.
//
// layout.cu includes this header, then the family's source, which ends with the rows. In place of a kernel's
// descriptor, each row becomes an entry of the page. layout.cu defines `template <class Row> void
// describe(layout::Page&)` in namespace tilegemm: the views of the types that the kernel of a row is made of. No kernel
// is instantiated. The whole of layout.cu is for the host alone: nvcc would read the file a second time for the device.
#pragma once
#include <cudaTypedefs.h>  // before CUTLASS, which would include this header inside of a namespace

#include "common/kernel.hpp"
#include "common/layout/views.hpp"

namespace tilegemm {

// registry.cpp has this function for kernels; no module is loaded here.
inline tg_status load_module(const void*) { return TG_UNSUPPORTED; }

template <class Row>
void describe(layout::Page& page);

namespace layout {

inline Page& the_page() {
  static Page page;
  return page;
}

template <class Row>
bool add(const char* name) {
  the_page().entry(name, "");
  describe<Row>(the_page());
  return true;
}

}  // namespace layout
}  // namespace tilegemm

#undef TG_DESCRIBE
#define TG_DESCRIBE(NAME, ...) static const bool NAME##_is_added = tilegemm::layout::add<tilegemm::NAME##_row>(#NAME);

int main() { tilegemm::layout::the_page().print(); }
