/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes and pops ranges in every way that NVTX 3 has, and allocates in each; with "fork" a child
 * that only forwards does so too, with "pops" there are more pops than pushes, and "many" registers
 * many strings. */
#include <cuda.h>
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void use(size_t size_bytes)
{
    CUdeviceptr block;

    if (cuMemAlloc(&block, size_bytes) != CUDA_SUCCESS || cuMemFree(block) != CUDA_SUCCESS)
        _exit(2);
}

static nvtxEventAttributes_t attributes(void)
{
    return (nvtxEventAttributes_t){.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
}

static void default_domain(void)
{
    nvtxEventAttributes_t event = attributes();

    nvtxRangePushA("ascii");
    use(1000);
    nvtxRangePushW(L"wide \u20ac");
    use(2000);
    nvtxRangePop();
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = "event";
    nvtxRangePushEx(&event);
    use(3000);
    nvtxRangePop();
    nvtxRangePop();
    nvtxMarkA("a mark is no range");
}

/* Ranges of two domains that do not nest. */
static void domains(void)
{
    nvtxDomainHandle_t one = nvtxDomainCreateA("one"), two = nvtxDomainCreateA("two");
    nvtxEventAttributes_t event = attributes();

    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringA(one, "first");
    nvtxDomainRangePushEx(one, &event);
    use(100);
    event.message.registered = nvtxDomainRegisterStringA(two, "second");
    nvtxDomainRangePushEx(two, &event);
    use(20);
    nvtxDomainRangePop(one);
    use(3);
    nvtxDomainRangePop(two);
    event.messageType = NVTX_MESSAGE_UNKNOWN;
    nvtxDomainRangePushEx(two, &event);
    nvtxDomainRangePop(two);
}

/* Their text is not kept, but what is pushed is popped. */
static void wide_characters(void)
{
    nvtxDomainHandle_t domain = nvtxDomainCreateW(L"wide");
    nvtxEventAttributes_t event = attributes();

    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringW(domain, L"registered");
    nvtxDomainRangePushEx(domain, &event);
    use(7);
    event.messageType = NVTX_MESSAGE_TYPE_UNICODE;
    event.message.unicode = L"event";
    nvtxRangePushEx(&event);
    use(7);
    nvtxRangePop();
    nvtxDomainRangePop(domain);
    use(50);
}

/* More strings than a tool of bounded memory can keep. */
static void many_strings(void)
{
    nvtxDomainHandle_t domain = nvtxDomainCreateA("many");
    nvtxStringHandle_t handles[2000];
    char text[32];

    for (int i = 0; i < 2000; i++) {
        snprintf(text, sizeof(text), "string %d", i);
        handles[i] = nvtxDomainRegisterStringA(domain, text);
    }
    printf("%d %d %d\n", handles[0] == nvtxDomainRegisterStringA(domain, "string 0"),
           handles[0] == handles[1], handles[1998] == handles[1999]);
}

int main(int count, char **arguments)
{
    const char *more = count > 1 ? arguments[1] : "";
    CUcontext context;
    int status = 0;

    nvtxRangePushA("before CUDA");
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return 2;
    default_domain();
    domains();
    wide_characters();
    nvtxRangePop();
    for (int i = 0; i < 3 && strcmp(more, "pops") == 0; i++)
        nvtxRangePop();
    if (strcmp(more, "many") == 0)
        many_strings();
    if (strcmp(more, "fork") == 0) {
        if (fork() == 0) {
            nvtxRangePushA("in a child");
            nvtxRangePop();
            _exit(0);
        }
        wait(&status);
    }
    printf("done %d\n", status);
    return 0;
}
