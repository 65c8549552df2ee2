"""Experiments on cdknet. They need a checkout of the project and are not part of the installed package."""
