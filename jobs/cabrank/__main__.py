"""`python -m cabrank` is the same as `cabrank`."""

from cabrank.cli import main

main()
