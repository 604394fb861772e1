"""What each stage brings along: its steps in the models and the rules of `harness fsck` that see it go wrong.

A stage that is added to `Stage` is added here; `unit/stages/test_stage_gate.py` says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness_pipelines.protocol.claims import Stage

#: Actions of the models, each taken in the suite's explorations.
STEPS: Mapping[Stage, tuple[str, ...]] = {
    Stage.INGEST: (
        *("ingest.take_claim", "ingest.poll", "ingest.share", "ingest.write", "ingest.commit", "ingest.refresh"),
        *("ingest.rotate", "ingest.close", "ingest.release", "ingest.wait_too_long"),
    ),
    Stage.TIER: (
        *("tier.take_claim", "tier.find", "tier.choose", "tier.plan", "tier.take_attempt", "tier.stage", "tier.build"),
        *("tier.lock", "tier.fence", "tier.commit", "tier.resolve", "tier.close", "tier.release"),
    ),
    Stage.OTREE: (
        *(
            "otree.take_claim",
            "otree.choose",
            "otree.plan",
            "otree.take_attempt",
            "otree.branch",
            "otree.stage",
            "otree.build",
        ),
        *("otree.publish", "otree.resolve", "otree.close", "otree.release"),
    ),
    Stage.COMPACT: (
        *(
            "compact.take_claim",
            "compact.choose",
            "compact.plan",
            "compact.take_attempt",
            "compact.branch",
            "compact.stage",
        ),
        *("compact.build", "compact.publish", "compact.close", "compact.release"),
    ),
    Stage.EXPIRE: (
        *("expire.lock", "expire.delete_leases", "expire.retire", "expire.drop", "expire.trim", "expire.drop_branches"),
        *("expire.look_reached", "expire.condemn", "expire.recheck", "expire.begin", "expire.delete", "expire.abandon"),
        *("expire.let_go", "expire.fold"),
    ),
    Stage.MIRROR: (
        *("mirror.take_claim", "mirror.intend", "mirror.look", "mirror.register", "mirror.commit", "mirror.conflict"),
        *("mirror.settle", "mirror.fenced", "mirror.overtaken", "mirror.stop", "mirror.die", "mirror.note_file"),
        "mirror.dropped",
    ),
    Stage.REVERT: ("revert.build", "revert.publish", "revert.refused"),
    Stage.REPLAY: ("replay.look", "replay.build", "replay.rebuild", "replay.wait", "replay.refused", "replay.publish"),
    Stage.EVOLVE: ("evolve.plan", "evolve.build", "evolve.rebuild", "evolve.refused", "evolve.publish"),
}

#: Invariants of which `harness fsck` has a rule.
FSCK_RULES: Mapping[Stage, tuple[str, ...]] = {
    Stage.INGEST: ("S1", "S6", "S13", "S22"),
    Stage.TIER: ("S3", "S7", "S8", "S9", "S37"),
    Stage.OTREE: ("S8", "S9", "S19"),
    Stage.COMPACT: ("S9", "S37"),
    Stage.EXPIRE: ("S10", "S11", "S39"),
    Stage.MIRROR: ("S10",),
    Stage.REVERT: ("S3", "S34"),
    Stage.REPLAY: ("S31",),
    Stage.EVOLVE: ("S21", "S22"),
}
