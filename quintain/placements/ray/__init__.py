"""Acts in actors of a Ray cluster. Ray is imported only when this placement is chosen."""

from __future__ import annotations

from quintain.core.extras import require_extra

require_extra("run.placement.type ray", "ray")
