"""What the service tells its zygote: a letter and the number of a worker."""

import struct

COMMAND = struct.Struct("!cI")
FORK, KILL = b"F", b"K"
