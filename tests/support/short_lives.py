"""What makes a JVM cheap that lives for a test or two."""

from __future__ import annotations

SHORT_LIFE = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Without the second compiler, threads that collect, and the verification of classes: a third of the time less."""
