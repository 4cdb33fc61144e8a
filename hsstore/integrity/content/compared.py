"""What is kept of every sample seen, so that samples can be compared once all were."""

from hsstore.integrity.content.beginnings import Beginnings
from hsstore.integrity.content.norms import Norms
from hsstore.integrity.content.shard_look import ShardLook
from hsstore.integrity.content.twins import Twins
from hsstore.model.manifest import Manifest
from hsstore.storage.token_file import ShardTokens


class Compared:
    """Figures of all samples of a run; for a million of them some hundred megabytes at most."""

    def __init__(self) -> None:
        self.norms = Norms()
        self.twins = Twins()
        self.beginnings = Beginnings()
        self.generations: dict[int, int] = {}
        self.unsound: set[int] = set()

    def add(
        self,
        manifest: Manifest,
        tokens: ShardTokens | None,
        look: ShardLook | None,
        unsound: set[int],
    ) -> None:
        """Take a shard; of ``look`` the samples that nothing is wrong with.

        Without its tokens nothing can be compared.
        """
        if tokens is None:
            return
        shard = manifest.version.shard
        self.generations[shard] = manifest.version.generation
        self.unsound |= unsound
        self.norms.add(manifest, tokens)
        if look is None or not look.form.telling.size:
            return
        sound = [seen for seen in look.looked() if seen.stored.sample not in unsound]
        with_ids = [
            (seen, tokens.sample(seen.stored.sample - tokens.first_sample)[1]) for seen in sound
        ]
        self.twins.add(shard, with_ids)
        for seen, ids in with_ids:
            self.beginnings.add(shard, seen, ids)
