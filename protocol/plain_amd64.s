#include "textflag.h"

// func plainAVX2(p *byte, blocks int) (n int, wide bool)
TEXT ·plainAVX2(SB), NOSPLIT, $0-25
	MOVQ p+0(FP), SI
	MOVQ blocks+8(FP), CX
	MOVQ SI, DI

	MOVL $0x22222222, AX // the quote
	VMOVD AX, X1
	VPBROADCASTD X1, Y1
	MOVL $0x5c5c5c5c, AX // the backslash
	VMOVD AX, X2
	VPBROADCASTD X2, Y2
	MOVL $0x1f1f1f1f, AX // the last control character
	VMOVD AX, X3
	VPBROADCASTD X3, Y3
	VPXOR Y7, Y7, Y7 // all bytes, one over the other

block:
	VMOVDQU (DI), Y0
	VPOR Y0, Y7, Y7
	VPCMPEQB Y0, Y1, Y4
	VPCMPEQB Y0, Y2, Y5
	VPMINUB Y0, Y3, Y6 // the byte itself if it is no greater
	VPCMPEQB Y0, Y6, Y6
	VPOR Y4, Y5, Y4
	VPOR Y4, Y6, Y4
	VPMOVMSKB Y4, AX
	TESTL AX, AX
	JNE found
	ADDQ $32, DI
	DECQ CX
	JNE block

	JMP done

found:
	BSFL AX, AX
	ADDQ AX, DI

done:
	SUBQ SI, DI
	MOVQ DI, n+16(FP)
	VPMOVMSKB Y7, AX
	TESTL AX, AX
	SETNE wide+24(FP)
	VZEROUPPER
	RET
