"""What all calls to one name share: `target_state` has its circuit, pace, quota and limiter; `registry` finds it by name."""
