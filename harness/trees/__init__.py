"""Trees: safe archives, one bare repository per engine, and worktrees named by their tip."""
