"""Private names of torch that dtensor_core uses, by subject; nothing else imports any.

`tests/torch_contract` asserts of each name that it is what its description here says. A new release
of torch that changes any of them fails there, by name. Private attributes of torch's objects, such
as `op._schema`, are used where they are needed, and asserted there too.
"""

import torch

from dtensor_core.versions import check_version

check_version(torch.__version__)
