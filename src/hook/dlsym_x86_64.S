/* SPDX-License-Identifier: Apache-2.0 */
/* void *dlsym(void *handle, const char *name)
 *
 * Calls rs_look_up(handle, name, caller).  If that does not answer, jumps to the real dlsym with the
 * registers and the stack as they were on entry.  It must be a jump: glibc takes the object in which
 * the return address lies for the one that asks, and RTLD_NEXT and RUNPATH depend on that object.
 * After a call from here it would be the library. */
        .text
        .globl  dlsym
        .type   dlsym, @function
        .p2align 4
dlsym:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        movq    24(%rsp), %rdx          /* the return address */
        call    rs_look_up
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rdx, %rdx              /* struct rs_answer: rax is `address`, rdx `forward_to` */
        jnz     1f
        ret
1:      jmp     *%rdx
        .cfi_endproc
        .size   dlsym, . - dlsym

        .section .note.GNU-stack, "", @progbits

        /* Says that this object keeps the promises of -fcf-protection. */
        .section .note.gnu.property, "a"
        .p2align 3
        .long   4
        .long   16
        .long   5
        .asciz  "GNU"
        .long   0xc0000002
        .long   4
        .long   3
        .long   0
