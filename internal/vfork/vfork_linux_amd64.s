#include "textflag.h"

#define SYS_CLONE3 435
#define SYS_EXIT_GROUP 231
#define SIZEOF_CLONE_ARGS 88

// The members of a systemCall.
#define CALL_NUMBER 0
#define CALL_ARGS 8
#define CALL_WANT 56
#define CALL_FAILED 64
#define CALL_ERRNO 72
#define SIZEOF_CALL 80

// func fork(args *cloneArgs, calls *systemCall) (pid int)
TEXT ·fork(SB), NOSPLIT, $0-24
	MOVQ args+0(FP), DI
	MOVQ calls+8(FP), R12 // which system calls preserve
	MOVQ $SIZEOF_CLONE_ARGS, SI
	MOVQ $SYS_CLONE3, AX
	SYSCALL
	TESTQ AX, AX
	JZ next
	MOVQ AX, pid+16(FP)
	RET

	// From here on this is the child. The stack is its parent's.
next:
	MOVQ CALL_NUMBER(R12), AX
	MOVQ (CALL_ARGS+0)(R12), DI
	MOVQ (CALL_ARGS+8)(R12), SI
	MOVQ (CALL_ARGS+16)(R12), DX
	MOVQ (CALL_ARGS+24)(R12), R10
	MOVQ (CALL_ARGS+32)(R12), R8
	MOVQ (CALL_ARGS+40)(R12), R9
	SYSCALL
	MOVQ AX, BX
	NEGQ BX
	CMPQ AX, $-4095
	JCC fail
	XORL BX, BX // no errno
	MOVQ CALL_WANT(R12), CX
	TESTQ CX, CX
	JZ good
	CMPQ AX, CX
	JNE fail
good:
	ADDQ $SIZEOF_CALL, R12
	JMP next
fail:
	MOVQ BX, CALL_ERRNO(R12)
	MOVQ $1, CALL_FAILED(R12)
	MOVQ $127, DI
	MOVQ $SYS_EXIT_GROUP, AX
	SYSCALL
	INT $3 // not reached

// func call(number, a, b, c, d uintptr) (result uintptr)
TEXT ·call(SB), NOSPLIT, $0-48
	MOVQ number+0(FP), AX
	MOVQ a+8(FP), DI
	MOVQ b+16(FP), SI
	MOVQ c+24(FP), DX
	MOVQ d+32(FP), R10
	XORL R8, R8
	XORL R9, R9
	SYSCALL
	MOVQ AX, result+40(FP)
	RET
