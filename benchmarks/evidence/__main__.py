# SPDX-License-Identifier: Apache-2.0
from .command import end_in_good_order_when_asked, main

if __name__ == "__main__":
    end_in_good_order_when_asked()
    raise SystemExit(main())
