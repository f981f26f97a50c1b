/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS, cuFFT and cuSOLVER, which take workspaces of their own beside the program's arrays:
 * products, transforms and factorisations in several sizes, every array allocated and freed anew.
 * Prints sums and digests, the same in every run (with CUBLAS_WORKSPACE_CONFIG set). */
#include "sample.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cufft.h>
#include <cusolverDn.h>
#include <math.h>

enum { ROUNDS = 4, ARRAYS = 64 };

static struct {
    cudaStream_t stream;
    cublasHandle_t blas;
    cusolverDnHandle_t solver;
    void *arrays[ARRAYS]; /* of this round */
    int array_count;
    uint64_t digest;
    double sum;
} the = {.digest = CHECKSUM_BEGIN};

static void *device_array(size_t size_bytes)
{
    CHECK(the.array_count < ARRAYS);
    MUST(cudaMalloc(&the.arrays[the.array_count], size_bytes));
    return the.arrays[the.array_count++];
}

static void free_arrays(void)
{
    while (the.array_count > 0)
        MUST(cudaFree(the.arrays[--the.array_count]));
}

static double random_real(struct sequence *random)
{
    return (double)(sequence_next(random) >> 11) * 0x1p-52 - 1;
}

static float *random_floats(struct sequence *random, size_t count)
{
    float *host = malloc(count * sizeof(float)), *device = device_array(count * sizeof(float));

    CHECK(host);
    for (size_t i = 0; i < count; i++)
        host[i] = (float)random_real(random);
    MUST(cudaMemcpyAsync(device, host, count * sizeof(float), cudaMemcpyHostToDevice, the.stream));
    MUST(cudaStreamSynchronize(the.stream));
    free(host);
    return device;
}

static double *random_doubles(struct sequence *random, size_t count)
{
    double *host = malloc(count * sizeof(double)), *device = device_array(count * sizeof(double));

    CHECK(host);
    for (size_t i = 0; i < count; i++)
        host[i] = random_real(random);
    MUST(cudaMemcpyAsync(device, host, count * sizeof(double), cudaMemcpyHostToDevice, the.stream));
    MUST(cudaStreamSynchronize(the.stream));
    free(host);
    return device;
}

/* A result: its bytes go into the digest, its floats or doubles into the sum. */
static void *fetch(const void *device, size_t size_bytes)
{
    uint32_t *host = malloc(size_bytes);

    CHECK(host);
    MUST(cudaMemcpyAsync(host, device, size_bytes, cudaMemcpyDeviceToHost, the.stream));
    MUST(cudaStreamSynchronize(the.stream));
    the.digest = checksum_words(the.digest, host, size_bytes / sizeof(*host));
    return host;
}

static void note_floats(const float *device, size_t count)
{
    float *host = fetch(device, count * sizeof(*host));

    for (size_t i = 0; i < count; i++)
        the.sum += fabs((double)host[i]);
    free(host);
}

static void note_doubles(const double *device, size_t count)
{
    double *host = fetch(device, count * sizeof(*host));

    for (size_t i = 0; i < count; i++)
        the.sum += fabs(host[i]);
    free(host);
}

static void report(const char *what)
{
    printf("%s sum %.9g\n", what, the.sum);
    the.sum = 0;
}

/* ---- cuBLAS ---- */

static void multiply(struct sequence *random, int n)
{
    const float one = 1, half = 0.5f;
    const double one_double = 1, half_double = 0.5;
    long long elements = (long long)n * n;
    int batch = 8;
    float *a = random_floats(random, (size_t)(batch * elements));
    float *b = random_floats(random, (size_t)(batch * elements));
    float *c = random_floats(random, (size_t)(batch * elements));
    double *x = random_doubles(random, (size_t)elements);
    double *y = random_doubles(random, (size_t)elements);
    double *z = random_doubles(random, (size_t)elements);

    MUST(cublasSgemm(the.blas, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, a, n, b, n, &half, c, n));
    note_floats(c, (size_t)elements);
    MUST(cublasSgemmStridedBatched(the.blas, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, a, n,
                                   elements, b, n, elements, &half, c, n, elements, batch));
    note_floats(c, (size_t)(batch * elements));
    MUST(cublasDgemm(the.blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one_double, x, n, y, n,
                     &half_double, z, n));
    note_doubles(z, (size_t)elements);
}

/* The handle's own workspace, then one of the program's. */
static void run_blas(struct sequence *random)
{
    static const int sizes[] = {33, 256, 700};
    size_t workspace_bytes = (size_t)8 << 20;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        multiply(random, sizes[i]);
        MUST(cublasSetWorkspace(the.blas, device_array(workspace_bytes), workspace_bytes));
        multiply(random, sizes[i]);
        MUST(cublasSetStream(the.blas, the.stream)); /* takes the workspace away again */
        free_arrays();
    }
    report("cublas");
}

/* ---- cuFFT ---- */

/* Real to complex and back.  A size with a large prime factor takes a large workspace. */
static void transform(struct sequence *random, int n, int batch)
{
    size_t reals = (size_t)n * (size_t)batch;
    size_t complexes = ((size_t)n / 2 + 1) * (size_t)batch;
    float *signal = random_floats(random, reals);
    cufftComplex *spectrum = device_array(complexes * sizeof(*spectrum));
    cufftHandle forward, backward;

    MUST(cufftPlan1d(&forward, n, CUFFT_R2C, batch));
    MUST(cufftPlan1d(&backward, n, CUFFT_C2R, batch));
    MUST(cufftSetStream(forward, the.stream));
    MUST(cufftSetStream(backward, the.stream));
    MUST(cufftExecR2C(forward, signal, spectrum));
    note_floats(&spectrum->x, 2 * complexes);
    MUST(cufftExecC2R(backward, spectrum, signal));
    note_floats(signal, reals);
    MUST(cufftDestroy(forward));
    MUST(cufftDestroy(backward));
}

static void transform_cube(struct sequence *random, int n)
{
    size_t doubles = 2 * (size_t)n * (size_t)n * (size_t)n;
    double *values = random_doubles(random, doubles);
    cufftDoubleComplex *cube = (cufftDoubleComplex *)values;
    cufftHandle plan;

    MUST(cufftPlan3d(&plan, n, n, n, CUFFT_Z2Z));
    MUST(cufftSetStream(plan, the.stream));
    MUST(cufftExecZ2Z(plan, cube, cube, CUFFT_FORWARD));
    note_doubles(values, doubles);
    MUST(cufftDestroy(plan));
}

static void run_fft(struct sequence *random)
{
    transform(random, 4096, 64);
    transform(random, 10007, 16);
    transform(random, 1 << 20, 1);
    transform_cube(random, 60);
    free_arrays();
    report("cufft");
}

/* ---- cuSOLVER ---- */

static void must_be_solved(const int *device_info)
{
    int info;

    MUST(cudaMemcpyAsync(&info, device_info, sizeof(info), cudaMemcpyDeviceToHost, the.stream));
    MUST(cudaStreamSynchronize(the.stream));
    CHECK(info == 0);
}

/* m * m' + n * identity: symmetric, positive definite, well conditioned. */
static double *definite_matrix(struct sequence *random, int n)
{
    const double one = 1;
    size_t count = (size_t)n * (size_t)n;
    double *m = random_doubles(random, count), *a = device_array(count * sizeof(double));
    double *identity = calloc(count, sizeof(double));

    CHECK(identity);
    for (size_t i = 0; i < (size_t)n; i++)
        identity[i * ((size_t)n + 1)] = n;
    MUST(cudaMemcpyAsync(a, identity, count * sizeof(double), cudaMemcpyHostToDevice, the.stream));
    MUST(cublasDgemm(the.blas, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, m, n, m, n, &one, a, n));
    MUST(cudaStreamSynchronize(the.stream));
    free(identity);
    return a;
}

static void factorise(struct sequence *random, int n)
{
    double *right = random_doubles(random, (size_t)n);
    int *info = device_array(sizeof(int)), *pivots = device_array((size_t)n * sizeof(int));
    double *a = definite_matrix(random, n);
    int words;

    MUST(cusolverDnDpotrf_bufferSize(the.solver, CUBLAS_FILL_MODE_LOWER, n, a, n, &words));
    MUST(cusolverDnDpotrf(the.solver, CUBLAS_FILL_MODE_LOWER, n, a, n,
                          device_array((size_t)words * sizeof(double)), words, info));
    must_be_solved(info);
    MUST(cusolverDnDpotrs(the.solver, CUBLAS_FILL_MODE_LOWER, n, 1, a, n, right, n, info));
    must_be_solved(info);
    note_doubles(right, (size_t)n);

    a = definite_matrix(random, n);
    right = random_doubles(random, (size_t)n);
    MUST(cusolverDnDgetrf_bufferSize(the.solver, n, n, a, n, &words));
    MUST(cusolverDnDgetrf(the.solver, n, n, a, n, device_array((size_t)words * sizeof(double)),
                          pivots, info));
    must_be_solved(info);
    MUST(cusolverDnDgetrs(the.solver, CUBLAS_OP_N, n, 1, a, n, pivots, right, n, info));
    must_be_solved(info);
    note_doubles(right, (size_t)n);
}

static void decompose(struct sequence *random, int n)
{
    double *a = definite_matrix(random, n), *values = device_array((size_t)n * sizeof(double));
    int *info = device_array(sizeof(int)), words;

    MUST(cusolverDnDsyevd_bufferSize(the.solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER,
                                     n, a, n, values, &words));
    MUST(cusolverDnDsyevd(the.solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, a, n,
                          values, device_array((size_t)words * sizeof(double)), words, info));
    must_be_solved(info);
    note_doubles(values, (size_t)n);
    note_doubles(a, (size_t)n * (size_t)n);
}

static void run_solver(struct sequence *random)
{
    factorise(random, 50);
    factorise(random, 600);
    decompose(random, 200);
    free_arrays();
    report("cusolver");
}

int main(void)
{
    struct sequence random = {.state = 6};

    MUST(cudaStreamCreateWithFlags(&the.stream, cudaStreamNonBlocking));
    for (int round = 0; round < ROUNDS; round++) {
        MUST(cublasCreate(&the.blas));
        MUST(cublasSetStream(the.blas, the.stream));
        MUST(cusolverDnCreate(&the.solver));
        MUST(cusolverDnSetStream(the.solver, the.stream));
        run_blas(&random);
        run_fft(&random);
        run_solver(&random);
        MUST(cusolverDnDestroy(the.solver));
        MUST(cublasDestroy(the.blas));
        printf("digest %016llx\n", (unsigned long long)the.digest);
    }
    MUST(cudaStreamDestroy(the.stream));
    return 0;
}
