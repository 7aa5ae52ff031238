// Loads a library and runs it. With FOREIGN, the host has a moe_gemm_wmma of its own.
#include <dlfcn.h>
#include <stdio.h>

#ifdef FOREIGN
void moe_gemm_wmma(int *from) { *from = 3; }
#endif

int main(int count, char **words) {
  void *library = dlopen(words[count - 1], RTLD_NOW);
  int (*run)(void) = library ? (int (*)(void))dlsym(library, "run") : 0;
  if (!run) {
    puts(dlerror());
    return 127;
  }
  return run();
}
