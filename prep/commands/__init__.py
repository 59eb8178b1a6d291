"""The commands of ``millstream``, one file each: ``add`` declares its arguments, its work loads what it needs and reports."""
