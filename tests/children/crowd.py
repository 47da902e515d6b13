"""Children that are steered, cancelled, killed or left alone at random moments, and what must come of it."""

import heapq
import os
import random
import time
from dataclasses import dataclass, field

import sandbox_exec as sx
from children import stubborn
from children.watch import limits

AT_ONCE = 40
WAYS = ("leave", "steer", "cancel", "kill", "steer and cancel", "steer and kill")


def seed():
    return int(os.environ.get("CROWD_SEED") or random.SystemRandom().randrange(1 << 32))


@dataclass
class Story:
    children: int = 0
    steers: int = 0
    steers_lost: int = 0
    wrong: list = field(default_factory=list)


def play(profile, seed, count):
    rng, story = random.Random(seed), Story()
    with sx.SandboxExecutor(profile, max_children=AT_ONCE) as executor:
        deeds, cast = [], []
        for number in range(count):
            way = rng.choice(WAYS)
            child = executor.launch(
                stubborn.collect_steers_for_a_moment, (rng.uniform(0, 0.05),), limits=limits()
            )
            receipts = []
            cast.append((child, way, receipts))
            for deed in way.split(" and "):
                at = time.monotonic() + rng.uniform(0, 0.3)
                heapq.heappush(deeds, (at, number, deed))
            while deeds and deeds[0][0] <= time.monotonic():
                _do(heapq.heappop(deeds), cast)
            if number - sum(not child.alive for child, _, _ in cast) >= AT_ONCE:  # some wait, not all
                time.sleep(0.005)
        while deeds:
            time.sleep(max(0.0, deeds[0][0] - time.monotonic()))
            _do(heapq.heappop(deeds), cast)
        for child, way, receipts in cast:
            story.children += 1
            _judge(story, child.outcome(60), way, receipts)
    return story


def _do(deed, cast):
    _, number, what = deed
    child, _, receipts = cast[number]
    if what == "steer":
        receipts += [child.steer(f"{child.id} {turn}") for turn in range(3)]
    elif what == "cancel":
        child.cancel()
    elif what == "kill":
        child.kill()


def _judge(story, outcome, way, receipts):
    accepted = [receipt for receipt in receipts if receipt]
    taken = [receipt.text for receipt in accepted if receipt.status == "taken"]
    missed = [receipt.text for receipt in accepted if receipt.status == "missed"]
    story.steers += len(accepted)
    story.steers_lost += len(accepted) - len(taken) - len(missed)
    ended = str(outcome.state)
    right = ended == "SUCCEEDED" or (ended == "CANCELLED" and ("cancel" in way or "kill" in way))
    if ended == "SUCCEEDED":
        right = right and outcome.value == taken
    if not right or list(outcome.missed_steer) != missed:
        story.wrong.append((outcome, way, receipts))
