"""Access control: authentication of requests, and the permissions of users.

Corresponds to the modules `acl` of Apache RocketMQ 4.9.8 and `auth` of 5.3.
"""
