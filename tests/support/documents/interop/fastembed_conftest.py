"""The classes with which the tests of fastembed run against `mirror_rt.compat`.

Its files of tests stay as they are. What they import from fastembed is replaced here before.
"""

import fastembed.late_interaction.late_interaction_text_embedding as late
import fastembed.sparse.sparse_text_embedding as sparse

from mirror_rt.compat import LateInteractionTextEmbedding, SparseTextEmbedding

late.LateInteractionTextEmbedding = LateInteractionTextEmbedding
sparse.SparseTextEmbedding = SparseTextEmbedding
