#include "textflag.h"

// The methods are those of Wojciech Muła and Daniel Lemire, "Faster Base64
// Encoding and Decoding Using AVX2 Instructions", 2018.

// For encoding: every group of three bytes, b a c b, so that each pair of 16
// bits holds two symbols.
DATA spread<>+0(SB)/8, $0x0405030401020001
DATA spread<>+8(SB)/8, $0x0a0b090a07080607
GLOBL spread<>(SB), RODATA|NOPTR, $16

// What is to be added to a value of 0 to 63 to get its symbol, by class: a-z,
// 0-9, +, /, A-Z.
DATA toSymbol<>+0(SB)/8, $0xfcfcfcfcfcfcfc47
DATA toSymbol<>+8(SB)/8, $0x000041f0edfcfcfc
GLOBL toSymbol<>(SB), RODATA|NOPTR, $16

// For decoding: a symbol is valid when the entries for its two nibbles have no
// bit in common.
DATA lowNibble<>+0(SB)/8, $0x1111111111111115
DATA lowNibble<>+8(SB)/8, $0x1a1b1b1b1a131111
GLOBL lowNibble<>(SB), RODATA|NOPTR, $16

DATA highNibble<>+0(SB)/8, $0x0804080402011010
DATA highNibble<>+8(SB)/8, $0x1010101010101010
GLOBL highNibble<>(SB), RODATA|NOPTR, $16

// What is to be added to a symbol to get its value, by high nibble; one less
// for the slash.
DATA toValue<>+0(SB)/8, $0xb9b9bfbf04131000
DATA toValue<>+8(SB)/8, $0x0000000000000000
GLOBL toValue<>(SB), RODATA|NOPTR, $16

// The three bytes of every 32 bits, in their order.
DATA gather<>+0(SB)/8, $0x090a040506000102
DATA gather<>+8(SB)/8, $0xffffffff0c0d0e08
GLOBL gather<>(SB), RODATA|NOPTR, $16

// The three used quarters of each half.
DATA join<>+0(SB)/8, $0x0000000100000000
DATA join<>+8(SB)/8, $0x0000000400000002
DATA join<>+16(SB)/8, $0x0000000600000005
DATA join<>+24(SB)/8, $0x0000000000000000
GLOBL join<>(SB), RODATA|NOPTR, $32

// func encodeAVX2(dst, src *byte, blocks int)
TEXT ·encodeAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX

	VBROADCASTI128 spread<>(SB), Y8
	VBROADCASTI128 toSymbol<>(SB), Y9
	MOVL $0x0fc0fc00, AX
	VMOVD AX, X10
	VPBROADCASTD X10, Y10
	MOVL $0x04000040, AX
	VMOVD AX, X11
	VPBROADCASTD X11, Y11
	MOVL $0x003f03f0, AX
	VMOVD AX, X12
	VPBROADCASTD X12, Y12
	MOVL $0x01000010, AX
	VMOVD AX, X13
	VPBROADCASTD X13, Y13
	MOVL $0x33333333, AX // 51
	VMOVD AX, X14
	VPBROADCASTD X14, Y14
	MOVL $0x1a1a1a1a, AX // 26
	VMOVD AX, X15
	VPBROADCASTD X15, Y15
	MOVL $0x0d0d0d0d, AX // 13
	VMOVD AX, X7
	VPBROADCASTD X7, Y7

encode:
	TESTQ CX, CX
	JZ    encoded
	VMOVDQU     (SI), X0
	VINSERTI128 $1, 12(SI), Y0, Y0
	VPSHUFB     Y8, Y0, Y0

	VPAND     Y10, Y0, Y1
	VPMULHUW  Y11, Y1, Y1
	VPAND     Y12, Y0, Y2
	VPMULLW   Y13, Y2, Y2
	VPOR      Y1, Y2, Y0

	VPSUBUSB  Y14, Y0, Y1
	VPCMPGTB  Y0, Y15, Y2
	VPAND     Y7, Y2, Y2
	VPOR      Y1, Y2, Y1
	VPSHUFB   Y1, Y9, Y1
	VPADDB    Y1, Y0, Y0
	VMOVDQU   Y0, (DI)

	ADDQ $24, SI
	ADDQ $32, DI
	DECQ CX
	JMP  encode

encoded:
	VZEROUPPER
	RET

// func decodeAVX2(dst, src *byte, blocks int) (left int)
TEXT ·decodeAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX

	VBROADCASTI128 lowNibble<>(SB), Y8
	VBROADCASTI128 highNibble<>(SB), Y9
	VBROADCASTI128 toValue<>(SB), Y10
	VBROADCASTI128 gather<>(SB), Y11
	VMOVDQU        join<>(SB), Y12
	MOVL $0x2f2f2f2f, AX
	VMOVD AX, X13
	VPBROADCASTD X13, Y13
	MOVL $0x01400140, AX
	VMOVD AX, X14
	VPBROADCASTD X14, Y14
	MOVL $0x00011000, AX
	VMOVD AX, X15
	VPBROADCASTD X15, Y15

decode:
	TESTQ CX, CX
	JZ    decoded
	VMOVDQU (SI), Y0

	VPSRLD  $4, Y0, Y1
	VPAND   Y13, Y1, Y1 // high nibbles
	VPAND   Y13, Y0, Y2 // low nibbles
	VPSHUFB Y1, Y9, Y3
	VPSHUFB Y2, Y8, Y4
	VPTEST  Y3, Y4
	JNZ     decoded // a byte that is no symbol

	VPCMPEQB Y13, Y0, Y2
	VPADDB   Y1, Y2, Y1
	VPSHUFB  Y1, Y10, Y1
	VPADDB   Y1, Y0, Y0

	VPMADDUBSW Y14, Y0, Y0
	VPMADDWD   Y15, Y0, Y0
	VPSHUFB    Y11, Y0, Y0
	VPERMD     Y0, Y12, Y0
	VMOVDQU    Y0, (DI)

	ADDQ $32, SI
	ADDQ $24, DI
	DECQ CX
	JMP  decode

decoded:
	MOVQ CX, left+24(FP)
	VZEROUPPER
	RET
