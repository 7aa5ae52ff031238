// moe_gemm_wmma of DEFINITION. With WITH, the object also has a function that the program calls: linkers take objects whole.
#if DEFINITION == 1
// The test looks for the words in programs.
__attribute__((used)) const char *const candles = "candle's moe_wmma.o";
#define FROM (candles[0] == 'c' ? 1 : 0)
#else
#define FROM DEFINITION
#endif
void moe_gemm_wmma(int *from) { *from = FROM; }
#ifdef WITH
void WITH(int *from) { moe_gemm_wmma(from); }
#endif
