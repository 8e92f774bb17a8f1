"""The contract of a framework. Its author reads these files in this order:

    program        what a framework and its programs must offer, and what they may offer
    group          the ranks of a run: collectives, point-to-point transfers, control messages
    gradient_sync  how a program and a gradient synchronization strategy (parallel/) work together
    rendezvous     how ranks are launched and find one another
    kv_store       the key-value store that they share
    collectives    the collective benchmark: which elements are sent and what must arrive
    validation     checks of weights and layers
    own_module     modules of a user: what their description is made from and of

`program.Framework` and `program.Program` are required; every protocol `Supports…` is optional. What
a framework cannot do it refuses with `Unsupported`, which becomes an outcome.
"""
