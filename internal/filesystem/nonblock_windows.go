package filesystem

const nonblock = 0
