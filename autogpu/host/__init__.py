"""What `autogpu host-setup --all-pythons` writes, so that every Python of a host has autogpu."""
