"""All that the harness takes of PyIceberg without its promise; a test names the version that it was checked with."""
