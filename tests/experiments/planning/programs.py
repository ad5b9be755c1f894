"""Texts of compiled programs, as XLA writes them for a TPU, cut down to what plans read."""


def line(name, kind, shape="f32[4,8]{1,0:T(8,128)}", scope="jit(f)", cycles=None, **attributes):
    """One instruction; attributes such as body= name computations."""
    named = "".join(f", {key}={value}" for key, value in attributes.items())
    cost = "" if cycles is None else f'"window_config":{{"estimated_cycles":"{cycles}"}},'
    return (
        f'  %{name} = {shape} {kind}(%x, /*index=5*/%y){named}, metadata={{op_name="{scope}" '
        f'stack_frame_id=3}}, backend_config={{"flag_configs":[],{cost}"lists":[]}}'
    )


def loop(name, body, scope, condition="%open"):
    return line(name, "while", "(s32[], f32[4,8]{1,0:T(8,128)S(1)})", scope,
                condition=condition, body=f"%{body}")  # fmt: skip


def computation(name, *lines, entry=False):
    heading = f"{'ENTRY ' if entry else ''}%{name} (a: (s32[], f32[4]{{0:T(128)}})) -> f32[4] {{"
    return "\n".join([heading, "  %a = (s32[], f32[4]{0:T(128)}) parameter(0)", *lines, "}"])


BODY = "jit(f)/vmap(rounds[1])/while/body"
SCORES = f"{BODY}/evaluation"
REDUCED = "(f32[10]{0}, f32[5,2]{1,0})"  # 80 bytes

# A round: 2 epochs of 3 steps (7 + 5 times 4 inner cycles each), mixing in 6 turns, a transfer in
# two fusions and one in every step; scores of 5 batches. Numbers are primes, to tell them apart.
PROGRAM = "\n\n".join(
    [
        "HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[4]{0:T(128)})->f32[4]}",
        computation("open", '  ROOT %lt.1 = pred[]{:T(512)} compare(%p, %q), direction=LT'),
        computation(
            "six",
            "  %constant.6 = s32[]{:T(128)} constant(6)",
            "  ROOT %lt.2 = pred[]{:T(512)} compare(s32[]{:T(128)} %p, %constant.6), direction=LT",
        ),
        computation("inner", line("i", "fusion", cycles=5)),
        computation(
            "step",
            line("s", "fusion", cycles=7, calls="%fused"),
            loop("w.4", "inner", "jit(f)/steps_of_mine/while").replace(
                "backend_config={", 'backend_config={"known_trip_count":{"n":"4"},'
            ),
            line("r.1", "all-reduce", REDUCED, channel_id=1, to_apply="%add"),
        ),
        computation("fused", line("f.1", "multiply", cycles=1000003)),
        computation(
            "epoch",
            line("sort", "fusion", cycles=11),
            loop("w.3", "step", f"{BODY}/vmap(segments[2])/while/body/steps[3]/while"),
        ),
        computation("turn", line("t", "fusion", cycles=13)),
        computation("odd", line("o", "fusion", cycles=17)),
        computation("batch", line("b", "fusion", cycles=19)),
        computation(
            "scores",
            loop("w.5", "batch", f"{SCORES}/cond/branch_1_fun/steps[5]/while"),
            line("last", "conditional", scope=f"{SCORES}/cond/branch_1_fun/last_round/cond",
                 true_computation="%turn", false_computation="%nothing"),
        ),
        computation("nothing", line("n", "broadcast", cycles=1)),
        computation("chain", line("g.1", "all-gather", "f32[10,2]{1,0}", channel_id=2)),
        computation(
            "round",
            line("m", "fusion", cycles=23),
            line("c.1", "fusion", cycles=0, calls="%chain"),
            line("c.2", "fusion", cycles=0, calls="%chain"),
            loop("w.2", "epoch", f"{BODY}/vmap(segments[2])/while"),
            loop("w.6", "turn", f"{BODY}/mix/while", condition="%six"),
            loop("w.7", "odd", f"{BODY}/strange/while"),
            line("near", "conditional", scope=f"{BODY}/seldom/cond",
                 branch_computations="{%turn, %nothing}"),
            line("k", "conditional", scope=f"{SCORES}/cond",
                 branch_computations="{%nothing, %scores}"),
        ),
        computation(
            "main",
            line("copy", "copy", cycles=29),
            loop("w.1", "round", "jit(f)/vmap(rounds[1])/while"),
            entry=True,
        ),
    ]
)  # fmt: skip
