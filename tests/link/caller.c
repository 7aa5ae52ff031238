// The function CALLER of an object of its own. With CALLS, the function passes the call on.
#ifdef CALLS
void CALLS(int *from);
void CALLER(int *from) { CALLS(from); }
#else
void CALLER(int *from) { *from = 1; }
#endif
