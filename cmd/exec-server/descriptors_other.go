//go:build !linux

package main

func inheritNothing() {}

func ignoreBrokenPipes() {}
