/* What a library was compiled of, and which of the libraries this processor can run. */

const char sources[] = SOURCES;

int has_avx2_and_fma(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#else
    return 0;
#endif
}
