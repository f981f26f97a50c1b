/* SPDX-License-Identifier: Apache-2.0 */
/* void *dlsym(void *handle, const char *name): see dlsym_x86_64.S. */
        .text
        .globl  dlsym
        .type   dlsym, %function
        .p2align 4
dlsym:
        .cfi_startproc
        hint    34                      /* bti c */
        stp     x29, x30, [sp, #-32]!
        .cfi_adjust_cfa_offset 32
        .cfi_offset x29, -32
        .cfi_offset x30, -24
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        mov     x2, x30                 /* the return address */
        bl      rs_look_up
        mov     x16, x1                 /* struct rs_answer: x0 is `address`, x1 `forward_to` */
        cbz     x16, 1f
        ldp     x0, x1, [sp, #16]
1:      ldp     x29, x30, [sp], #32
        .cfi_adjust_cfa_offset -32
        .cfi_restore x29
        .cfi_restore x30
        cbz     x16, 2f
        br      x16
2:      ret
        .cfi_endproc
        .size   dlsym, . - dlsym

        .section .note.GNU-stack, "", %progbits

        /* Says that this object keeps the promise of -mbranch-protection=bti. */
        .section .note.gnu.property, "a"
        .p2align 3
        .word   4
        .word   16
        .word   5
        .asciz  "GNU"
        .word   0xc0000000
        .word   4
        .word   1
        .word   0
