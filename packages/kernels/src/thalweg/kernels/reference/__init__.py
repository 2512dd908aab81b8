"""Plain torch ops: each reads like the equation it computes, and defines what a kernel must return."""
