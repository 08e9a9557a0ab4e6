"""The set-up of autogpu for all Pythons of a host: `autogpu host-setup --all-pythons`."""
